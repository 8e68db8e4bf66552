"""A value whose text has more than 1 GiB: the server can show it neither in its log nor in the rows. The job passes it."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.state.errors import LogPositionLostError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(109), pytest.mark.servers_in_turn("postgres_source_server")]

HUGE = " || ".join(["(1::bit(83886080))"] * 13)
"""1,090,519,040 bits. They take 1.5 MB in the table and in the log, and their text one byte each."""


def job_of(source: Database, folder: Path, **settings: Any) -> Path:
    for table in ("flags", "other"):
        source.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v varbit)", f"INSERT INTO {table} VALUES (1, '1')")
    sink = {"type": "files", "path": str(folder / "out"), "on_schema_change": "evolve"}
    section = source_of(source, **({"on_table_error": "park", "on_log_lost": "resnapshot"} | settings))
    return write_job(folder, source=section, sink=sink)


def rows(folder: Path, source: Database, table: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for row in read_history(folder / "out", source.schema, table).to_pylist():
        if row["_change_type"] == "truncate":
            found.clear()
        else:
            found[row["id"]] = row["v"]
    return found


@pytest.mark.every_server
def test_the_other_tables_go_on_each_time(postgres_source_database: Database, tmp_path: Path) -> None:
    source = postgres_source_database
    job = job_of(source, tmp_path)
    run_epochs(job)
    for number in (2, 3):
        source.execute(f"INSERT INTO flags VALUES ({number}, {HUGE})", f"INSERT INTO other VALUES ({number}, '1')")
        notes = Notes()
        run_epochs(job, notes=notes)
        told = [facts["text"] for event, facts in notes.found if event in ("warning", "parked")]
        assert any("So the rows of all tables are read again" in text for text in told)
        assert {facts["table"] for event, facts in notes.found if event == "parked"} == {"public.flags"}
        assert sorted(rows(tmp_path, source, "other")) == list(range(1, number + 1))
        source.execute(f"UPDATE other SET v = '101' WHERE id = {number}")
        assert set(run_epochs(job)) == {"stream"}
        assert rows(tmp_path, source, "other")[number] == "101"
    source.execute("UPDATE flags SET v = '11' WHERE id > 1")
    resnapshot(load_job_file(job), [TableName("public", "flags")])
    run_epochs(job)
    assert rows(tmp_path, source, "flags") == {1: "1", 2: "11", 3: "11"}


@pytest.mark.every_server
def test_a_job_that_may_not_read_all_again_says_what_to_do(postgres_source_database: Database, tmp_path: Path) -> None:
    source = postgres_source_database
    job = job_of(source, tmp_path, on_log_lost="stop")
    run_epochs(job)
    source.execute(f"INSERT INTO flags VALUES (2, {HUGE})", "INSERT INTO other VALUES (2, '1')")
    with pytest.raises(LogPositionLostError, match="can't show a value in its log") as caught:
        run_epochs(job)
    assert "set source.on_log_lost: resnapshot, and run the job again" in caught.value.remedy
    assert "Correct the value in the source." in caught.value.remedy
    source.execute("UPDATE flags SET v = '11' WHERE id > 1")
    run_epochs(job, "source.on_log_lost=resnapshot")
    assert rows(tmp_path, source, "flags") == {1: "1", 2: "11"}
