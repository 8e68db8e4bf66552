"""Remedies for trouble with a checkpoint (where it is, and going back to an epoch), with names of audit columns, and with the
server that a job reads, done as they are printed: the job goes on, and its copies are those of the source."""

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CommandLine
from tests.support.copy_troubles import CREATE, CopyTrouble, get_over_copy
from tests.support.epochs import Notes
from tests.support.remedies import run_command
from tests.support.remedy_ways import (
    Settings,
    by_hand,
    get_over_all,
    mirror_job,
    require_copies,
    setting,
    told_by,
    told_of,
)
from tests.support.s3 import Application, s3_server
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.startup import open_job
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = pytest.mark.integration


@pytest.fixture
def source(mysql_database: Database) -> Database:
    mysql_database.execute(*CREATE)
    return mysql_database


@pytest.fixture
def target(postgres_database: Database) -> Database:
    return postgres_database


def test_a_checkpoint_elsewhere(source: Database, target: Database, tmp_path: Path) -> None:
    settings = Settings(checkpoint="gs://bucket/job")
    (tmp_path / "file").write_text("")
    job = mirror_job(tmp_path, source, target)
    get_over_all(
        lambda: told_by(job, *settings.overrides),
        {
            "Give a path on a filesystem that the driver and all executors share": settings.setting(
                "checkpoint", "s3a:///job"
            ),
            "Write s3a://bucket/folder.": settings.setting("checkpoint", str(tmp_path / "file" / "job")),
            "or name another folder as `checkpoint`.": settings.setting("checkpoint", str(tmp_path / "folder")),
        },
    )
    require_copies(source, target)


@pytest.mark.every_server
def test_a_bucket_that_can_not_be_reached(source: Database, target: Database, tmp_path: Path) -> None:
    job = mirror_job(tmp_path, source, target)
    with s3_server() as bucket:
        told_of(job, "Check the bucket, and the account", f"checkpoint={bucket}x/job")
        checkpoint = f"checkpoint={bucket}/job"
        assert told_by(job, checkpoint) is None
        source.execute("UPDATE orders SET note = 'z'")
        assert told_by(job, checkpoint) is None
    require_copies(source, target)


@pytest.mark.every_server
def test_a_bucket_that_can_not_hold_a_checkpoint(source: Database, target: Database, tmp_path: Path) -> None:
    """Packages are missing, then its server takes no conditions, then something removes files."""
    faults = {"overwrites", "removes"}

    def faulty(server: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if "overwrites" in faults:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            if "removes" in faults and environ["PATH_INFO"].endswith("/job/job") and environ["REQUEST_METHOD"] == "GET":
                start_response("404 Not Found", [])
                return [b""]
            return server(environ, start_response)

        return answer

    job = mirror_job(tmp_path, source, target)
    with s3_server(faulty) as bucket, pytest.MonkeyPatch.context() as missing:
        missing.setitem(sys.modules, "botocore.exceptions", None)
        get_over_all(
            lambda: told_by(job, f"checkpoint={bucket}/job"),
            {
                "pip install 'tidemark-cdc[s3]', where the driver runs": lambda _: missing.undo(),
                "Put `checkpoint` on storage with conditional puts (If-None-Match)": lambda _: faults.remove(
                    "overwrites"
                ),
                "See what else removes files there. Then start the job again.": lambda _: faults.remove("removes"),
            },
        )
    require_copies(source, target)


def test_a_filesystem_without_hard_links(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FAT is, and some that show a bucket as a folder."""
    job, link = mirror_job(tmp_path, source, target), os.link

    def link_elsewhere(old: Path, new: Path) -> None:
        if tmp_path / "fat" in new.parents:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        link(old, new)

    monkeypatch.setattr(os, "link", link_elsewhere)
    told_of(job, "Put `checkpoint` on a POSIX filesystem.", f"checkpoint={tmp_path}/fat")
    assert told_by(job, f"checkpoint={tmp_path}/posix") is None
    require_copies(source, target)


def test_an_epoch_to_go_back_to(source: Database, target: Database, tmp_path: Path, tidemark: CommandLine) -> None:
    job = mirror_job(tmp_path, source, target)

    def back(epoch: int) -> str:
        return tidemark("checkpoints", job, "rollback", epoch).last_line

    assert "Start it: tidemark run JOB.yaml." in tidemark("status", job).last_line
    for number in range(3):
        assert told_by(job) is None
        source.execute(f"UPDATE orders SET note = '{number}'")
    committed = Checkpoint.at(load_job_file(job).checkpoint).committed_epoch()
    assert "Choose another epoch: tidemark checkpoints JOB.yaml list" in back(committed + 7)
    with open_job(load_job_file(job), Notes()):
        assert "Stop the job first." in back(committed)
    assert tidemark("checkpoints", job, "rollback", committed - 1).code == 0
    assert "Choose an older epoch, or let the job run" in back(committed)
    assert told_by(job) is None
    assert tidemark("checkpoints", job, "rollback", committed).code == 0
    assert told_by(job) is None
    require_copies(source, target)


AUDIT = "CREATE TABLE orders (id int PRIMARY KEY, note text, gone int)"


@pytest.mark.parametrize("way", ["excluded", "renamed"])
def test_a_column_with_the_name_of_an_audit_column(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, way: str
) -> None:
    trouble = CopyTrouble(
        "or start the job with another name in sink.audit_columns.",
        source=(AUDIT,),
        wrong=("sink.audit_columns={deleted: gone}",),
        sink={"audit_columns": {"deleted": "gone" if way == "excluded" else "removed"}},
        does=setting if way == "excluded" else by_hand(),
        later=("INSERT INTO orders VALUES (9, 'n', 1)",),
        compared="id, note",
    )
    get_over_copy(tmp_path, mysql_database, postgres_database, trouble, tidemark)


CASCADES = (
    "CREATE TABLE parents (id int PRIMARY KEY)",
    "CREATE TABLE orders (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parents (id) ON DELETE CASCADE)",
    "INSERT INTO parents VALUES (1), (2)",
    "INSERT INTO orders VALUES (1, 1), (2, 2)",
)


def test_rows_that_cascades_delete_are_compared(
    mariadb_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    source, target = mariadb_database, postgres_database
    source.execute(*CASCADES)
    job = mirror_job(tmp_path, source, target, cascades="warn")
    told = told_of(job, "Compare at times: tidemark reconcile JOB.yaml.")
    run_command(told, job, tidemark)
    source.execute("DELETE FROM parents WHERE id = 1")
    assert told_by(job) == told
    assert tidemark("reconcile", job).code != 0
    assert tidemark("reconcile", job, "--repair").code != 0
    assert told_by(job) == told
    run_command(told, job, tidemark)
    require_copies(source, target)
