"""`log.apply_parallelism`: a job ends with exact copies, whatever happens between the tables of an epoch."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.sink_state import SinkCase
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.tables.parking import may_be_half_written
from tidemark.sinks.mirror import shares
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = pytest.mark.integration

TABLES = ("accounts", "bookings", "notes")
TWO = "log.apply_parallelism=2"


class Case:
    """A job with three tables, whose epochs are divided, however small they are."""

    def __init__(self, source: Database, target: Database, folder: Path) -> None:
        self.source, self.target = source, target
        self.schema = source.schema
        for table in TABLES:
            source.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(99))", f"INSERT INTO {table} VALUES (1, 'first')"
            )
        url = target.url if target.kind == "postgres" else f"{target.server.url}{target.name}"
        sink = {"type": "mirror", "url": url, "table": "copy_{table}"}
        settings = source_of(source, tables=[f"{self.schema}.{table}" for table in TABLES])
        self.path = write_job(folder, source=settings, sink=sink)

    def change(self, number: int) -> None:
        """One transaction. Keys move, and rows come and go."""
        self.source.execute(
            *(f"INSERT INTO {table} VALUES ({number}, '{number}')" for table in TABLES),
            f"UPDATE accounts SET id = id + 1000 WHERE id = {number}",
            f"UPDATE bookings SET v = 'changed by {number}'",
            f"DELETE FROM notes WHERE id < {number}",
        )

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.target.query(f"SELECT id, v FROM copy_{table} ORDER BY id")]

    def expected(self, table: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.source.query(f"SELECT id, v FROM {table} ORDER BY id")]

    def assert_complete(self) -> None:
        assert {t: self.rows(t) for t in TABLES} == {t: self.expected(t) for t in TABLES}

    def die_between(self) -> set[str]:
        """Changes all tables, and dies within the epoch that writes this. Returns the tables that have it already."""
        run_epochs(self.path, TWO)
        self.assert_complete()
        self.change(2)
        die_at(self.path, "shares.committed", TWO)
        return {table for table in TABLES if self.rows(table) == self.expected(table)}


@pytest.fixture(params=[("mysql", "postgres")], ids="-".join)
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    monkeypatch.setattr(mirror_writer, "MIN_BYTES", 1)
    source, target = (request.getfixturevalue(f"{kind}_database") for kind in request.param)
    return Case(source, target, tmp_path)


@pytest.mark.parametrize(
    ("case", "parallelism"), [(("mysql", "postgres"), 1), (("postgres", "mariadb"), 3)], indirect=["case"]
)
def test_another_number_of_connections_ends_what_was_begun(case: Case, parallelism: int) -> None:
    written = case.die_between()
    assert written
    assert written < set(TABLES)
    checkpoint = Checkpoint.at(str(case.path.parent / "checkpoint"))
    state = checkpoint.job_state()
    assert state is not None
    assert may_be_half_written(load_job_file(case.path), checkpoint, state)
    case.change(3)
    run_epochs(case.path, f"log.apply_parallelism={parallelism}")
    case.assert_complete()


def test_a_table_of_which_the_target_has_some_buckets(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection ends the epoch. In the next such epoch the copy is dropped: its table leaves, and comes back."""
    monkeypatch.setattr(shares, "MIN_BYTES", 1)
    park = ("source.on_table_error=park",)
    run_epochs(case.path)
    for number, changed in ((2, "changed"), (3, "again")):
        case.source.execute(
            *(f"INSERT INTO accounts VALUES ({(number + 10 * row) << 8}, 'new')" for row in range(30)),
            f"UPDATE accounts SET v = '{changed}'",
        )
        case.change(number)
        before = case.rows("accounts")
        die_at(case.path, "shares.committed", TWO)
        half = case.rows("accounts")
        assert half != before
        assert half != case.expected("accounts")
        if number == 2:
            run_epochs(case.path)
            case.assert_complete()
    case.target.execute("DROP TABLE copy_accounts")
    run_epochs(case.path, TWO, *park)
    for table in set(TABLES) - {"accounts"}:
        assert case.rows(table) == case.expected(table)
    resnapshot(load_job_file(case.path), [TableName(case.schema, "accounts")])
    run_epochs(case.path, TWO, *park)
    case.assert_complete()


@pytest.mark.parametrize("is_written", [True, False])
def test_a_table_leaves_once_the_epoch_is_whole(case: Case, is_written: bool) -> None:
    written = case.die_between()
    leaving = sorted(written if is_written else set(TABLES) - written)[0]
    expected = case.expected(leaving)
    case.change(3)
    run_epochs(case.path, TWO, f"source.exclude_tables=[{case.schema}.{leaving}]")
    assert case.rows(leaving) == expected
    for table in set(TABLES) - {leaving}:
        assert case.rows(table) == case.expected(table)


@pytest.mark.parametrize(
    ("trouble", "is_written"),
    [
        ("DROP TABLE copy_{}", True),
        ("DROP TABLE copy_{}", False),
        ("ALTER TABLE copy_{} ADD CHECK (v = '') NOT VALID", False),
    ],
    ids=["written-gone", "gone", "refuses"],
)
def test_a_copy_in_trouble_does_not_hold_up_the_epoch(case: Case, trouble: str, is_written: bool) -> None:
    """It can't take its changes any more, or be checked. So it leaves the job before the epoch is whole."""
    park = (TWO, "source.on_table_error=park")
    written = case.die_between()
    victim = sorted(written if is_written else set(TABLES) - written)[0]
    case.target.execute(trouble.format(victim))
    case.change(3)
    run_epochs(case.path, *park)
    for table in set(TABLES) - {victim}:
        assert case.rows(table) == case.expected(table)
    case.target.execute(f"DROP TABLE IF EXISTS copy_{victim}")
    case.change(4)
    run_epochs(case.path, *park)
    resnapshot(load_job_file(case.path), [TableName(case.schema, victim)])
    run_epochs(case.path, *park)
    case.assert_complete()


def test_a_target_from_a_backup_of_such_a_moment(case: Case) -> None:
    """More than the log is read again: the backup's tables are of two positions of it."""
    case.die_between()
    put_back = SinkCase(case.target.kind, None, case.target).back_up()  # type: ignore[arg-type]
    run_epochs(case.path, TWO)
    case.change(3)
    run_epochs(case.path, TWO)
    put_back()
    case.change(4)
    notes = Notes()
    run_epochs(case.path, TWO, "source.on_log_lost=resnapshot", notes=notes)
    assert [facts for event, facts in notes.found if event == "warning" and "set back" in facts["text"]]
    case.assert_complete()
