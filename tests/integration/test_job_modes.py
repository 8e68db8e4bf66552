"""The modes in which a job may continue: `full` first, the changes later."""

from pathlib import Path

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied
from tests.support.jobs import write_job
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.state.errors import CheckpointError

pytestmark = pytest.mark.integration


def job_of(folder: Path, database: Database) -> Path:
    return write_job(
        folder,
        source={"url": database.server.url, "tables": [f"{database.name}.*"]},
        snapshot={"split_rows": 100, "parallelism": 2},
        sink={"type": "files", "path": str(folder / "out")},
    )


@pytest.mark.servers_in_turn("source_database")
def test_a_copy_made_in_mode_full_is_followed_later(source_database: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(source_database, rows=600, uids=uids)
    job = job_of(tmp_path, source_database)
    with Writers(source_database, uids, count=2, seed=1, pause_seconds=0.02):
        assert run_epochs(job, "mode=full")[-1] == "catch_up"
    assert run_epochs(job, "mode=full") == []
    assert set(run_epochs(job, "mode=full+incremental")) == {"stream"}
    assert_copied(tmp_path / "out", source_database)
    notes = Notes()
    with Writers(source_database, uids, count=2, seed=2, pause_seconds=0.02):
        run_epochs(job, "mode=incremental", notes=notes)
    assert [facts["text"] for event, facts in notes.found if "no rows are read any more" in facts.get("text", "")]
    run_epochs(job, "mode=full+incremental")
    assert_copied(tmp_path / "out", source_database)
    with pytest.raises(CheckpointError, match="already follows the log"):
        run_epochs(job, "mode=full")


def test_a_mode_may_change_while_the_copy_is_made(mysql_database: Database, tmp_path: Path) -> None:
    uids = Uids()
    create_tables(mysql_database, rows=600, uids=uids)
    job = job_of(tmp_path, mysql_database)
    with Writers(mysql_database, uids, count=2, seed=3, pause_seconds=0.02):
        assert run_epochs(job, "mode=full", "snapshot.interleave=false", at_most=1) == ["snapshot"]
        with pytest.raises(CheckpointError, match="needs a complete copy, but this job is in phase snapshot"):
            run_epochs(job, "mode=incremental")
    phases = run_epochs(job, "mode=full+incremental", "snapshot.interleave=false")
    assert list(dict.fromkeys(phases)) == ["snapshot", "catch_up"]
    run_epochs(job, "mode=full+incremental")
    assert_copied(tmp_path / "out", mysql_database)


def test_changes_alone_are_no_copy(mysql_database: Database, tmp_path: Path) -> None:
    create_tables(mysql_database, rows=5, uids=Uids())
    job = job_of(tmp_path, mysql_database)
    run_epochs(job, "mode=incremental")
    for mode in ("full", "full+incremental"):
        with pytest.raises(CheckpointError, match="is of mode incremental and has no copy of the rows"):
            run_epochs(job, f"mode={mode}")
