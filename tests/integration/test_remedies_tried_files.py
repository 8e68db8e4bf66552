"""Remedies for trouble with the folders of a job that writes files, done as they are printed: the job goes on, and the files
have the source's rows."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.cli import CommandLine
from tests.support.jobs import source_of, write_job
from tests.support.remedy_ways import Settings, get_over_all, told_by, told_of
from tests.support.room import files_of_at_most
from tests.support.servers import Database
from tidemark.sinks.files.folding import Folding

pytestmark = pytest.mark.integration

LONG_NAME = "→" * 48


def files_job(folder: Path, source: Database, **sink: Any) -> Path:
    return write_job(
        folder, source=source_of(source), sink={"type": "files", "path": "./out", "format": "jsonl"} | sink
    )


def ids_in(folder: Path) -> list[int]:
    files = sorted(folder.glob("*.jsonl"))
    return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())


def test_folders_that_a_job_can_not_have(mysql_database: Database, tmp_path: Path) -> None:
    source, settings = mysql_database, Settings()
    for table in ("orders", "others", "more", f"`{LONG_NAME}`"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)", f"INSERT INTO {table} VALUES (1)")
    (tmp_path / "file").write_text("")
    out = tmp_path / "out"
    settings["source.exclude_tables"] = "[]"
    renames = [f"{{match: {LONG_NAME}, to: arrows}}"]

    def rename(*rules: str) -> Callable[[str], None]:
        return settings.setting("sink.rename", f"[{', '.join([*rules, *renames])}]")

    stray = out / f"{source.name}.orders"
    stray.mkdir(parents=True)
    (stray / "notes.txt").write_text("")
    settings["sink.path"] = "s3a://bucket/out"
    job = files_job(tmp_path, source)
    get_over_all(
        lambda: told_by(job, *settings.overrides),
        {
            "Give a folder on a filesystem that the driver and all executors share.": settings.setting(
                "sink.path", f"file://out{tmp_path}/out"
            ),
            "Write file:///folder with three slashes.": settings.setting("sink.path", f"file://{tmp_path}/file/out"),
            "Give it another name by sink.rename, or leave it out": rename(r"{match: orders(.*), to: \1}"),
            "Correct sink.rename.": rename("{match: orders, to: others}"),
            "Give them different names by sink.table or sink.rename": rename(),
            "or set another sink.path.": settings.setting("sink.path", str(out)),
            "Empty that folder": lambda _: shutil.rmtree(stray),
        },
    )
    for table in ("orders", "others", "more", "arrows"):
        assert ids_in(out / f"{source.name}.{table}") == [1]


def test_a_folder_on_another_filesystem(mysql_database: Database, tmp_path: Path) -> None:
    other = Path("/dev/shm", tmp_path.name)
    if not other.parent.is_dir() or other.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other filesystem")
    mysql_database.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    folder = tmp_path / "out" / f"{mysql_database.name}.orders"
    folder.parent.mkdir()
    other.mkdir()
    try:
        folder.symlink_to(other)
        job = files_job(tmp_path, mysql_database)
        told_of(job, "Let all of sink.path be on one filesystem.")
        folder.unlink()
        assert told_by(job) is None
        assert ids_in(folder) == [1]
    finally:
        shutil.rmtree(other)


def test_the_folder_of_a_table_that_left_the_job(postgres_database: Database, tmp_path: Path) -> None:
    source = postgres_database
    for schema in "ab":
        source.execute(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.orders (id int PRIMARY KEY)")
    source.execute("INSERT INTO b.orders VALUES (1)")
    job = files_job(tmp_path, source, table="{table}")
    assert told_by(job, "source.tables=[a.orders]") is None
    both = ("source.tables=[a.orders, b.orders]", "source.exclude_tables=[a.orders]")
    told_of(job, "Exclude this table (source.exclude_tables)", *both)
    assert told_by(job, both[0], "source.exclude_tables=[b.orders]") is None
    told_of(job, "or delete that folder.", *both)
    shutil.rmtree(tmp_path / "out" / "orders")
    assert told_by(job, *both) is None
    assert ids_in(tmp_path / "out" / "orders") == [1]


def test_a_filesystem_without_room(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note longtext)", "INSERT INTO orders VALUES (1, '')"
    )
    job = files_job(tmp_path, mysql_database)
    assert told_by(job) is None
    mysql_database.execute("INSERT INTO orders VALUES (3, 'compiles what the next run needs')")
    assert told_by(job) is None
    mysql_database.execute("INSERT INTO orders VALUES (2, concat(uuid(), repeat(uuid(), 5000)))")
    with files_of_at_most(100_000):
        told_of(job, "Check that filesystem (space, permissions, quota), then start the job again.")
    assert told_by(job) is None
    assert ids_in(tmp_path / "out" / f"{mysql_database.name}.orders") == [1, 2, 3]


def test_a_folder_that_is_a_file(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    folder = tmp_path / "out" / f"{mysql_database.name}.orders"
    folder.parent.mkdir()
    folder.write_text("")
    job = files_job(tmp_path, mysql_database)
    told_of(job, "Empty that folder, or set another sink.path.")
    folder.unlink()
    staging = folder.parent / "_tidemark"
    staging.write_text("")
    told_of(job, "Check that filesystem (space, permissions, quota), then start the job again.")
    staging.unlink()
    assert told_by(job) is None
    assert ids_in(folder) == [1]


def test_files_that_vanish_or_are_damaged_while_they_are_compared(
    mysql_database: Database, tidemark: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = mysql_database
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    job = files_job(tmp_path, source, format="parquet")
    assert told_by(job) is None
    source.execute("UPDATE orders SET note = 'b'", "INSERT INTO orders VALUES (2, 'b')")
    assert told_by(job) is None
    file = max((tmp_path / "out" / f"{source.name}.orders").glob("*.parquet"))
    new_files = Folding._new_files

    def vanishing(folding: Folding) -> list[Any]:
        """Somebody copies files to and fro."""
        other = file.with_name(f"copy-{file.name}")
        shutil.copy(file, other)
        found = new_files(folding)
        other.unlink()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Folding, "_new_files", vanishing)
        assert tidemark("reconcile", job).last_line.endswith("Remedy: Compare again.")
    assert tidemark("reconcile", job).code == 0
    whole = file.read_bytes()
    pages = pq.ParquetFile(file).metadata.row_group(0).column(1)
    at = pages.data_page_offset
    file.write_bytes(whole[:at] + bytes(200) + whole[at + 200 :])
    told = tidemark("reconcile", job).last_line
    assert f"{file} can't be read" in told, told
    assert "Restore it from a copy, or delete it." in told, told
    file.write_bytes(whole)
    assert tidemark("reconcile", job).code == 0
