"""The checkpoint loses rows of the running epoch that the sink has: they can't be read again as they were."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]


@pytest.mark.servers_in_turn("sink", "loss")
@pytest.mark.parametrize("loss", ["a file", "an older copy is put back"])
@pytest.mark.parametrize("sink", ["files", "mirror"])
def test_the_table_is_read_again(
    any_source_database: Database, postgres_database: Database, tmp_path: Path, sink: str, loss: str
) -> None:
    """Without that, changes between the two readings are in no copy, and the run ends with 0."""
    source, target = any_source_database, postgres_database
    for table in ("orders", "customers"):
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(20))",
            f"INSERT INTO {table} VALUES " + ", ".join(f"({number}, 'first')" for number in range(1, 21)),
        )
    into: dict[str, Any] = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    if sink == "mirror":
        into = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(source), sink=into, snapshot={"split_rows": 5, "parallelism": 1})
    checkpoint = tmp_path / "checkpoint"
    if loss == "a file":
        die_at(job, "sink.after_commit")
        (lost,) = (checkpoint / "published").iterdir()
        lost.unlink()
    else:
        die_at(job, "planner.after_plan")
        shutil.copytree(checkpoint, tmp_path / "older")
        die_at(job, "sink.after_commit")
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "older", checkpoint)
        (checkpoint / "owners" / f"{9:010d}").write_text("{}")  # else the first starts are told to start again
    source.execute("UPDATE orders SET note = 'second'", "UPDATE customers SET note = 'second'")
    with pytest.raises(CheckpointError, match=r"has lost its file published/e1-s0: rows of .* that the target has"):
        run_epochs(job, "sink.on_schema_change=stop")
    run_epochs(job, notes=(notes := Notes()))
    state = Checkpoint.at(str(checkpoint)).job_state()
    assert state is not None
    require_none_parked(load_job_file(job), state)
    assert len([event for event, _ in notes.found if event == "left"]) == 1
    for table in ("orders", "customers"):
        if sink == "mirror":
            assert target.query(f"SELECT DISTINCT note FROM copy_{table}") == [("second",)]
        else:
            rows = read_history(tmp_path / "out", source.schema, table).to_pylist()
            rows.sort(key=lambda row: (row["_commit_version"], row["_seq"]))
            emptied = max((n for n, row in enumerate(rows) if row["_change_type"] == "truncate"), default=-1)
            found = {row["id"]: row["note"] for row in rows[emptied + 1 :]}
            assert found == dict.fromkeys(range(1, 21), "second")


@pytest.mark.timeout(900)
def test_a_table_in_delta_is_read_again(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source = mysql_database
    source.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(20))",
        "INSERT INTO orders VALUES (1, 'first'), (2, 'first')",
    )
    sink = {"type": "delta", "path": "./lake", "style": "mirror", "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(source), sink=sink)
    die_at(job, "sink.after_commit")
    (lost,) = (tmp_path / "checkpoint" / "published").iterdir()
    lost.unlink()
    source.execute("UPDATE orders SET note = 'second'")
    run_epochs(job)
    rows = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{source.schema}.orders")).collect()
    assert sorted((row["id"], row["note"]) for row in rows) == [(1, "second"), (2, "second")]
