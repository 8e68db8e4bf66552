"""Audit columns of copies in Delta (`sink.audit_columns`): rows that the source has deleted stay with their last values, and
each row says when it was written. tests/property/test_delta_rows.py has random changes, and tests/contract has replays."""

import dataclasses
import datetime
import time
from collections.abc import Callable, Collection
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.test_delta_comparing import found
from tests.integration.test_delta_set_back import before_a_commit
from tests.integration.test_repairs import repair
from tests.support.change_parts import (
    DELETE,
    INSERT,
    NOTES,
    ORDERS,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    column,
    log_part,
    part,
    replacing_part,
    rows,
    snapshot_part,
)
from tests.support.delta import commits_of, newest_version, write_epochs
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.reconciling import assert_equal, compared, found_keys
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.spark import session as spark_session
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.sinks.audit import AuditColumns
from tidemark.sinks.delta.locations import FolderLake
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError, SinkError
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000068", "lake")
KEEPING = AuditColumns(synced_at="_synced_at", deleted="_deleted")
AGAIN = dataclasses.replace(ORDERS, version=2)
"""A table that came back to its job."""
SCHEMAS = {(schema.table, schema.version): schema for schema in (ORDERS, AGAIN, NOTES)}
ALL_GONE: list[Change] = [(TRUNCATE, [None] * 5)]


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return (number, customer, None, None, None)


class Copy:
    """A copy of one table, partitioned, whose epochs are `staged` or rows of Spark's tasks."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        schema: TableSchema,
        partition: str,
        audit: AuditColumns = KEEPING,
        *,
        staged: bool = True,
    ) -> None:
        by = {TableName(schema.table.database, schema.table.name): (partition,)}
        lake, checkpoint = FolderLake(f"{folder}/lake"), LocalStore(str(folder / "checkpoint"))
        self.session, self.schema, self.staged = session, schema, staged
        self.sink = DeltaSink(lake, "mirror", by, checkpoint, lambda: session, audit=audit)
        self.relation = lake.location_of(schema.table).relation
        self.sink.prepare(JOB, [schema])

    def write(self, *parts: list[Any], emptied: bool = False) -> None:
        items = [item for items in parts for item in items]
        write_epochs(self.sink, JOB, items, SCHEMAS, staged=self.staged, emptied=[self.schema.table] if emptied else ())

    def held(self, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.session.sql(f"SELECT {', '.join(columns)} FROM {self.relation}").collect()))

    def times(self) -> dict[int, datetime.datetime]:
        return dict(self.held("id", "_synced_at"))


def test_rows_are_marked_with_their_last_values_and_unmarked(delta_session: SparkSession, tmp_path: Path) -> None:
    """Also by TRUNCATE, and by a table that comes back. Only rows that are written or marked get a new time."""
    copy = Copy(delta_session, tmp_path, ORDERS, "customer")

    def states() -> list[tuple[Any, ...]]:
        return copy.held("id", "customer", "_deleted")

    began = time.time()
    copy.write(snapshot_part(1, 1, ORDERS, [order(n) for n in range(1, 6)]))
    first = copy.times()
    assert len(set(first.values())) == 1
    assert began <= first[1].timestamp() <= time.time()
    changes = [(UPDATE, order(1, "")), (UPDATE, order(2, "last")), (DELETE, order(2)), (DELETE, order(3))]
    changes += [(INSERT, order(8)), (DELETE, order(8)), (DELETE, order(4)), (INSERT, order(14, "new"))]
    epoch = log_part(2, (ORDERS, changes))
    copy.write(epoch)
    second = copy.times()
    copy.write(epoch)
    assert copy.times() == second, "Delta skips what it has"
    assert {n for n in second if second[n] == first.get(n)} == {5}
    assert len(set(second.values())) == 2
    assert states() == [(1, None, False), (2, "last", True), (3, "Ada", True), (4, "Ada", True), (5, "Ada", False),
                        (8, "Ada", True), (14, "new", False)]  # fmt: skip
    copy.write(log_part(3, (ORDERS, [(INSERT, order(3, "new")), (DELETE, order(2)), (UPDATE, order(5, "new"))])))
    third = copy.times()
    assert {n for n in third if third[n] != second[n]} == {3, 5}, "2 was deleted before"
    gone = (ORDERS, ALL_GONE)
    copy.write(
        log_part(
            4,
            *[(ORDERS, [(UPDATE, order(1, "last")), (INSERT, order(9)), (INSERT, order(10))]), gone],
            *[(ORDERS, [(INSERT, order(9, "last")), (INSERT, order(5))]), gone],
            (ORDERS, [(INSERT, order(14, "last")), (INSERT, order(11)), (DELETE, order(11))]),
        )
    )
    after = [(1, "last", True), (2, "last", True), (3, "new", True), (4, "Ada", True), (5, "Ada", True), (8, "Ada", True),
             (9, "last", True), (10, "Ada", True), (11, "Ada", True), (14, "last", False)]  # fmt: skip
    assert states() == after
    assert {n for n, at in copy.times().items() if at == third.get(n)} == {2, 4, 8}
    copy.write(log_part(5, (ORDERS, ALL_GONE)), emptied=True)
    copy.write(log_part(6, (ORDERS, ALL_GONE)), emptied=True)
    copy.write(
        snapshot_part(7, 2, AGAIN, [order(n, "new") for n in (2, 14, 20)]), snapshot_part(7, 3, AGAIN, [order(1)])
    )
    expected = (
        {n: (name, True) for n, name, _ in after} | dict.fromkeys((2, 14, 20), ("new", False)) | {1: ("Ada", False)}
    )
    assert states() == sorted((n, *state) for n, state in expected.items())
    metadata = [commit["userMetadata"] for commit in commits_of(copy.sink, ORDERS)]
    whole = ["tidemark epoch 5 after 4 whole", "tidemark epoch 6 after 5 whole"]
    assert [text for text in metadata if text and text.endswith("whole")] == whole, (
        "also if all rows were marked already"
    )


@pytest.mark.every_server
def test_ranges_are_replaced_and_rows_that_were_read_again_too(delta_session: SparkSession, tmp_path: Path) -> None:
    """Whatever the copy has of these keys; rows of other ranges stay as they are."""
    copy = Copy(delta_session, tmp_path, ORDERS, "note", staged=False)
    copy.write(snapshot_part(1, 1, ORDERS, [order(n) for n in range(1, 9)]))
    copy.write(log_part(2, (ORDERS, [(DELETE, order(2)), (DELETE, order(7))])))
    orders = {ORDERS.table: {"id": "integers"}}
    assert copy.sink.replaceable(JOB, [ORDERS], orders) == {ORDERS.table}
    copy.session.sql(f"INSERT INTO {copy.relation} BY NAME SELECT * FROM {copy.relation} WHERE id IN (2, 4, 6)")
    keys = IntegerRange(("id",), None, (5,))
    copy.write(replacing_part(3, 2, AGAIN, keys, [order(1, "a"), order(2, "b"), order(4, "c")]))
    rest = [(5, "Ada", False), (6, "Ada", False), (6, "Ada", False), (7, "Ada", True), (8, "Ada", False)]
    read = [(1, "a", False), (2, "b", False), (3, "Ada", True), (4, "c", False)]
    assert copy.held("id", "customer", "_deleted") == read + rest
    again: list[Change] = [
        (INSERT, order(6, "d")),
        (INSERT, order(7, "e")),
        (DELETE, order(8)),
        (INSERT, order(5, "f")),
    ]
    batches = [(AGAIN, rows(AGAIN, again, snapshot=True)), (AGAIN, rows(AGAIN, [(DELETE, order(5))], version=9))]
    copy.write(part(4, "log", batches))
    mended = [(5, "f", True), (6, "d", False), (7, "e", False), (8, "Ada", True)]
    assert copy.held("id", "customer", "_deleted") == read + mended
    copy.session.sql(f"UPDATE {copy.relation} SET _deleted = NOT _deleted, _synced_at = NULL WHERE id IN (3, 4)")
    there = [order(1, "a"), order(2, "b"), order(4, "c"), order(6, "d"), order(7, "e")]
    with copy.sink.comparable(AGAIN) as comparisons:
        assert found(comparisons, AGAIN, there) == {"missing": {"4"}, "surplus": {"3"}}
    assert sorted(copy.sink.keys_within(AGAIN, IntegerRange(("id",), (2,), (7,)), 9)) == [("2",), ("3",), ("6",)]


@pytest.mark.parametrize("staged", [False, True], ids=["by tasks", "staged"])
def test_values_that_the_log_leaves_out_stay(delta_session: SparkSession, tmp_path: Path, *, staged: bool) -> None:
    """Also of rows that are deleted, and of rows that get another key, in place of a row that stays marked."""
    copy = Copy(delta_session, tmp_path, NOTES, "lang", staged=staged)

    def note(number: int, stars: int, body: Any = UNCHANGED, lang: str = "") -> tuple[Any, ...]:
        return number, lang, stars, body, UNCHANGED if body is UNCHANGED else b"", Decimal("1.00")

    def moved(old: int, new: int, stars: int) -> list[Change]:
        return [(DELETE, (old, "", None, None, None, None)), (INSERT, note(new, stars))]

    copy.write(snapshot_part(1, 1, NOTES, [note(n, 0, f"body {n}") for n in range(1, 8)]))
    changes: list[list[Change]] = [
        [(UPDATE, note(1, 1))],
        [(UPDATE, note(2, 2)), (DELETE, note(2, 2, None))],
        moved(3, 13, 3),
        [*moved(4, 14, 4)],
        [(UPDATE, note(14, 5)), (DELETE, note(14, 5, None))],
        [(INSERT, note(4, 6, "new"))],
        moved(5, 15, 7),
        moved(6, 5, 8),
        moved(15, 6, 9),
    ]
    copy.write(log_part(2, *((NOTES, change) for change in changes)))
    assert copy.held("id", "stars", "body", "_deleted") == [
        (1, 1, "body 1", False), (2, 2, "body 2", True), (3, 0, "body 3", True), (4, 6, "new", False),
        (5, 8, "body 6", False), (6, 9, "body 5", False), (7, 0, "body 7", False), (13, 3, "body 3", False),
        (14, 5, "body 4", True), (15, 7, "body 5", True),
    ]  # fmt: skip
    for wrong in ([(UPDATE, note(99, 1))], moved(99, 98, 1)):
        with pytest.raises(SinkError, match=r"public\.notes: The log leaves values out of changes to rows that"):
            copy.write(log_part(3, (NOTES, wrong)))


@pytest.mark.every_server
def test_the_time_alone(delta_session: SparkSession, tmp_path: Path) -> None:
    """Rows that the source deletes are deleted. Each way of writing sets the time."""
    copy = Copy(delta_session, tmp_path, ORDERS, "note", AuditColumns(synced_at="at"), staged=False)

    def state() -> dict[int, tuple[str, int]]:
        """The customer, and the number of the commit's time."""
        found = copy.held("id", "customer", "at")
        times.extend(sorted({at for _, _, at in found} - set(times)))
        return {number: (customer, times.index(at)) for number, customer, at in found}

    times: list[datetime.datetime] = []
    copy.write(snapshot_part(1, 1, ORDERS, [order(n) for n in range(1, 5)]))
    assert state() == dict.fromkeys(range(1, 5), ("Ada", 0))
    copy.write(log_part(2, (ORDERS, [(DELETE, order(1)), (UPDATE, order(2, "two")), (INSERT, order(5))])))
    assert state() == {2: ("two", 1), 3: ("Ada", 0), 4: ("Ada", 0), 5: ("Ada", 1)}
    copy.write(replacing_part(3, 2, AGAIN, IntegerRange(("id",), (4,), None), [order(5, "five")]))
    assert state() == {2: ("two", 1), 3: ("Ada", 0), 5: ("five", 2)}
    copy.write(log_part(4, (AGAIN, ALL_GONE), (AGAIN, [(INSERT, order(6))])))
    assert state() == {6: ("Ada", 3)}


def test_copies_that_can_t_have_the_columns_are_refused(delta_session: SparkSession, tmp_path: Path) -> None:
    lake, checkpoint = FolderLake(f"{tmp_path}/lake"), LocalStore(str(tmp_path / "checkpoint"))
    sink = DeltaSink(lake, "mirror", {}, checkpoint, lambda: delta_session, audit=KEEPING)
    plain = dataclasses.replace(sink, audit=AuditColumns())
    relation = lake.location_of(ORDERS.table).relation
    with_name = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, column("_Deleted", "int", "int32")))
    assert "has the name of a column in sink.audit_columns" in " ".join(f.text for f in sink.check([with_name]))
    types = "id BIGINT, customer STRING, amount DECIMAL(12,2), placed_at TIMESTAMP_NTZ, note STRING, _deleted BOOLEAN"
    delta_session.sql(f"CREATE TABLE {relation} ({types}) USING delta")
    with pytest.raises(SinkError, match="has no column _synced_at"):
        sink.prepare(JOB, [ORDERS])
    delta_session.sql(f"ALTER TABLE {relation} ADD COLUMNS (_synced_at TIMESTAMP)")
    sink.prepare(JOB, [ORDERS])
    assert not [finding for finding in sink.check([ORDERS], JOB) if finding.is_problem]
    with pytest.raises(SinkError, match=r"has the name of a column in sink\.audit_columns"):
        sink.add_columns(JOB, with_name, ["_Deleted"])
    rekeyed = dataclasses.replace(ORDERS, key=("customer",))
    with pytest.raises(
        SinkError, match=r"keeps deleted rows by the key \(id\), and the table's key is \(customer\) now"
    ):
        sink.prepare(JOB, [rekeyed])
    assert not [finding for finding in plain.check([rekeyed], JOB) if finding.is_problem]


AUDIT = {"deleted": "_deleted", "synced_at": "_synced_at"}


class Job:
    """A job that has copied table a, with ids 1 to 3."""

    def __init__(self, session: SparkSession, source: Database, folder: Path) -> None:
        self.session, self.source, self.folder = session, source, folder
        source.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 0), (2, 0), (3, 0)")
        self.write()
        self.run()
        self.place = folder / "lake" / f"{source.schema}.a"

    def write(self, audit: Any = AUDIT) -> None:
        sink = {"type": "delta", "path": "./lake", "on_schema_change": "evolve", "audit_columns": audit}
        self.path = write_job(self.folder, source=source_of(self.source, on_table_error="park"), sink=sink)

    def run(self) -> list[str]:
        """Returns which tables left, came back, or were altered."""
        run_epochs(self.path, notes=(notes := Notes()))
        return [event for event, _ in notes.found if event in {"left", "joined", "altered", "parked"}]

    def restore(self, before: int = 1) -> None:
        """Sets the copy back to so many versions before the newest one."""
        self.sql(f"RESTORE TABLE {{copy}} TO VERSION AS OF {newest_version(self.place) - before}")

    def sql(self, statement: str) -> None:
        """Runs a statement on the copy, as `{copy}`."""
        self.session.newSession().sql(statement.format(copy=f"delta.`{self.place}`"))

    def ids(self, condition: str) -> set[int]:
        found = self.session.sql(f"SELECT id FROM delta.`{self.place}` WHERE {condition}").collect()
        assert len({row[0] for row in found}) == len(found)
        return {row[0] for row in found}

    def assert_held(self, deleted: Collection[int]) -> None:
        there = {row for (row,) in self.source.query("SELECT id FROM a")}
        assert (self.ids("NOT _deleted"), self.ids("_deleted")) == (there, set(deleted))
        copy = self.session.sql(f"SELECT id, v FROM delta.`{self.place}` WHERE NOT _deleted ORDER BY id").collect()
        assert list(map(tuple, copy)) == self.source.query("SELECT id, v FROM a ORDER BY id")


@pytest.fixture
def job(
    delta_session: SparkSession, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Job]:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    return lambda: Job(delta_session, mysql_database, tmp_path)


@pytest.mark.every_server
def test_a_job_keeps_deleted_rows_whatever_becomes_of_its_copy(
    job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read again range by range; then set back by RESTORE before a TRUNCATE, which hides nothing: all rows are marked,
    and read again, also after deaths; a column is added."""
    copied = job()
    copied.source.execute(
        "DELETE FROM a WHERE id = 3", "INSERT INTO a VALUES (4, 0)", "UPDATE a SET v = 1 WHERE id = 1"
    )
    assert copied.run() == []
    copied.source.execute("DELETE FROM a WHERE id = 4")
    resnapshot(load_job_file(copied.path), [TableName(copied.source.schema, "a")])
    assert copied.run() == ["joined"]
    copied.assert_held({3, 4})
    copied.source.execute("TRUNCATE TABLE a", "INSERT INTO a VALUES (1, 5), (5, 5)")
    with monkeypatch.context() as patch:
        before_a_commit(copied.restore, patch)
        assert copied.run() == ["left", "joined"]
    copied.assert_held({2, 3, 4})
    copied.source.execute(
        "ALTER TABLE a ADD COLUMN more INT", "DELETE FROM a WHERE id = 5", "INSERT INTO a VALUES (6, 1, 2)"
    )
    assert copied.run() == ["altered"]
    copied.assert_held({2, 3, 4, 5})
    copied.restore()
    die_at(copied.path, "sink.after_commit")  # all rows are marked
    copied.run()
    copied.assert_held({2, 3, 4, 5})
    copied.write({"deleted": "gone"})
    with pytest.raises(CheckpointError, match=r"started with sink\.audit_columns: deleted: _deleted, synced_at: _sync"):
        copied.run()


DAMAGE = (
    "UPDATE {copy} SET v = 9 WHERE id = 1",
    "DELETE FROM {copy} WHERE id = 2",
    "UPDATE {copy} SET _deleted = id <> 3 WHERE id IN (3, 4)",
    "INSERT INTO {copy} SELECT * FROM {copy} WHERE id = 5",
    "INSERT INTO {copy} VALUES (99, 0, false, NULL)",
)
"""A changed cell, a row that is missing, a deleted one that is there again, one that is marked, one that is there twice, and
one that the source never had."""


@pytest.mark.every_server
def test_rows_that_differ_are_read_again_and_deleted_ones_stay(
    job: Callable[[], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `reconcile --repair`; also if RESTORE sets the copy back before the job has read them."""
    copied = job()
    monkeypatch.setattr(spark_session, "open_session", lambda *_: copied.session)
    copied.source.execute("DELETE FROM a WHERE id = 3", "INSERT INTO a VALUES (4, 0), (5, 0), (6, 0)")
    assert copied.run() == []
    for statement in DAMAGE:
        copied.sql(statement)
    found = compared(copied.path)["a"]
    assert found_keys(found) == {
        "different": {("1",), ("5",)},
        "missing": {("2",), ("4",)},
        "surplus": {("3",), ("99",)},
    }
    for comes_back in ([], ["left", "joined"]):
        repair(copied.path)
        if comes_back:
            copied.restore(before=2)  # the rows of the first repair go
        assert copied.run() == comes_back
        copied.assert_held({3, 99})
        assert_equal(copied.path, {"a": 5})
        copied.sql("DELETE FROM {copy} WHERE id = 6")
