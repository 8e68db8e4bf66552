"""A target or a checkpoint that was set back: the job stops before it writes, and the printed remedies work."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import SinkCase
from tidemark.state.checkpoint.layout import Checkpoint, plan_file
from tidemark.state.errors import CheckpointError, JobHeldError, SinkError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(90)]

START_OVER = "start over with an empty checkpoint and an empty target"


@pytest.fixture
def source(mysql_database: Database) -> Database:
    mysql_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO orders VALUES " + ", ".join(f"({number}, 'first')" for number in range(1, 41)),
    )
    return mysql_database


@pytest.fixture(params=["mysql", "postgres", "parquet"])
def target(request: pytest.FixtureRequest, source: Database, tmp_path: Path) -> Iterator[SinkCase]:
    if request.param == "parquet":
        yield SinkCase("parquet", None, tmp_path / "out")  # type: ignore[arg-type]
    elif request.param == "postgres":
        yield SinkCase("postgres", None, request.getfixturevalue("postgres_database"))  # type: ignore[arg-type]
    else:
        with fresh_database(source.server) as database:
            yield SinkCase("mysql", None, database)  # type: ignore[arg-type]


@pytest.fixture
def job(source: Database, target: SinkCase, tmp_path: Path) -> Path:
    is_files = target.kind == "parquet"
    sink = {"type": "files", "path": "./out"} if is_files else {"type": "mirror", "url": target.place.url}
    return write_job(tmp_path, source=source_of(source), sink=sink, snapshot={"split_rows": 5, "parallelism": 2})


def assert_complete(target: SinkCase, source: Database, job: Path) -> None:
    """The copy has the last note of each row."""
    expected = dict(source.query("SELECT id, note FROM orders"))
    if target.kind == "parquet":
        files = sorted((job.parent / "out" / f"{source.name}.orders").glob("*.parquet"))
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
        rows.sort(key=lambda row: (row["_commit_version"], row["_seq"]))
        assert {row["id"]: row["note"] for row in rows} == expected
    else:
        assert dict(target.place.query(f"SELECT id, note FROM {source.name}_orders")) == expected


def test_a_target_from_a_backup_stops_the_job_until_its_newest_state_is_back(
    job: Path, source: Database, target: SinkCase
) -> None:
    """The backup is from the middle of the snapshot, from before a change, or from its end."""
    run_epochs(job, at_most=1)
    backups = [target.back_up()]
    run_epochs(job)
    backups.append(target.back_up())
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}' WHERE id % 7 = 1")
        assert run_epochs(job) == ["stream"]
    newest = target.back_up()
    source.execute("UPDATE orders SET note = 'fourth' WHERE id = 40")
    for put_back in backups:
        put_back()
        with pytest.raises(SinkError, match="The target was set back or exchanged: the checkpoint says") as caught:
            run_epochs(job)
        assert caught.value.exit_code == 5
        assert "Put back the newest state of the target" in caught.value.remedy
        assert START_OVER in caught.value.remedy
    newest()
    assert run_epochs(job) == ["stream"]
    assert_complete(target, source, job)


def test_starting_over_after_a_target_was_set_back_copies_everything(
    job: Path, source: Database, target: SinkCase
) -> None:
    run_epochs(job)
    put_back = target.back_up()
    source.execute("UPDATE orders SET note = 'second'")
    assert run_epochs(job) == ["stream"]
    put_back()
    with pytest.raises(SinkError, match="was set back"):
        run_epochs(job)
    shutil.rmtree(job.parent / "checkpoint")
    if target.kind == "parquet":
        shutil.rmtree(target.place)
    else:
        own = [f"{source.name}_orders", "tidemark_ledger", "tidemark_tables", "tidemark_fence"]
        target.place.execute(*(f"DROP TABLE {name}" for name in own))
    assert run_epochs(job)
    assert_complete(target, source, job)


def test_a_checkpoint_that_was_set_back_stops_the_job_until_its_newest_files_are_back(
    job: Path, source: Database, target: SinkCase
) -> None:
    """The first starts have smaller numbers than the target's owner. They are told to start again, until the epochs tell."""
    run_epochs(job)
    checkpoint, newest = job.parent / "checkpoint", job.parent / "newest"
    shutil.copytree(checkpoint, job.parent / "old")
    for note in ("second", "third"):
        source.execute(f"UPDATE orders SET note = '{note}'")
        assert run_epochs(job) == ["stream"]
    shutil.move(checkpoint, newest)
    shutil.copytree(job.parent / "old", checkpoint)
    with pytest.raises(JobHeldError, match="names driver 3, and this one is driver 2") as held:
        run_epochs(job)
    assert "start the job again. If that does not help, the checkpoint was set back" in held.value.remedy
    with pytest.raises(CheckpointError, match="the checkpoint was set back, or lost files"):
        run_epochs(job)
    shutil.rmtree(checkpoint)
    shutil.move(newest, checkpoint)
    source.execute("UPDATE orders SET note = 'fourth'")
    assert run_epochs(job) == ["stream"]
    assert_complete(target, source, job)


@pytest.mark.pitfall(96)
def test_a_power_cut_while_a_plan_is_written_loses_nothing(job: Path, source: Database, target: SinkCase) -> None:
    run_epochs(job)
    notes = Notes()
    newest = max(Checkpoint.at(str(job.parent / "checkpoint")).plan_epochs())
    (job.parent / "checkpoint" / plan_file(newest + 1)).write_bytes(b"")
    source.execute("UPDATE orders SET note = 'second'")
    assert run_epochs(job, notes=notes) == ["stream"]
    assert [facts["text"] for event, facts in notes.found if event == "warning"][-1].startswith("A power cut")
    assert_complete(target, source, job)
    (job.parent / "checkpoint" / plan_file(newest + 1)).write_bytes(b"")
    with pytest.raises(CheckpointError, match="is damaged"):
        run_epochs(job)
