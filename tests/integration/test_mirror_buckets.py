"""Several connections write one large table into a mirror, each some buckets of its keys: each key has the epoch once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.integration.test_mirror_shares import Driver, die, stream
from tests.integration.test_sink_mirror_errors import wait_for_lock
from tests.support.change_parts import (
    DELETE,
    INSERT,
    ORDERS,
    TRUNCATE,
    UNCHANGED,
    UPDATE,
    Change,
    log_part,
    snapshot_part,
)
from tests.support.sink_state import Row, SinkCase, make_case, sorted_rows, target_name
from tidemark.sinks.mirror import buckets, shares
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.bad_values import Policies
from tidemark.sinks.mirror.buckets import bucket_part, buckets_of
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import PartResult, SinkBusyError
from tidemark.state.change_batch import ChangeBatch, PartEnd, table_part
from tidemark.state.errors import JobHeldError, RefusedRowsError, SinkError
from tidemark.state.reached import Reached
from tidemark.state.table import Column, TableId, TableSchema

pytestmark = pytest.mark.integration

POSTS = TableSchema(
    TableId("public", "posts"),
    1,
    (
        Column("id", "bigint", "int64", nullable=False),
        Column("stars", "integer", "int32", nullable=True),
        Column("body", "text", "string", nullable=True, toastable=True),
    ),
    ("id",),
)
EMPTIED = [(TRUNCATE, (None,) * 5)]
ODD = frozenset({1, 3, 5, 7})
"""The buckets of the second of two shares, which is committed first."""


def key(number: int) -> int:
    """Keys of different buckets."""
    return number << 8


def order(number: int, customer: str) -> Row:
    return (number, customer, None, None, None)


def bucket_of(number: int) -> int:
    rows = pa.RecordBatch.from_arrays([pa.array([number])], names=["id"])
    return int(buckets_of(ORDERS, rows)[0])


class DriverOfPosts(Driver):
    """A driver of a job that copies POSTS from PostgreSQL."""

    def __init__(self, case: SinkCase, number: int) -> None:
        assert isinstance(case.sink, MirrorSink)
        self.job = replace(case.job, owner=number)
        self.sink = replace(case.sink, parallelism=2, source_kind="postgresql")
        self.sink.prepare(self.job, [POSTS])

    def write(self, *parts: list[ChangeBatch | PartEnd]) -> list[PartResult]:
        schemas = {(POSTS.table, POSTS.version): POSTS}
        return list(self.sink.writer(self.job).write((item for items in parts for item in items), schemas))


class Model:
    """The source's table ORDERS, and what changes in it, at random."""

    def __init__(self) -> None:
        self.random = random.Random(54)
        self.rows = {key(number): f"first {number}" for number in range(60)}

    def first(self) -> list[ChangeBatch | PartEnd]:
        return snapshot_part(1, 1, ORDERS, [order(*row) for row in self.rows.items()])

    def epoch(self, number: int) -> list[ChangeBatch | PartEnd]:
        """Some transactions. Rows come, change, go and move."""
        transactions = [(ORDERS, self._transaction(f"{number}/{place}")) for place in range(4)]
        after = Reached(0, 1) if number == 2 else Reached(number - 1, 0)
        return log_part(number, *transactions, after=after)

    def updates(self, number: int) -> list[ChangeBatch | PartEnd]:
        """All rows change."""
        self.rows = dict.fromkeys(self.rows, f"{number}")
        changes = [(UPDATE, order(*row)) for row in self.rows.items()]
        return log_part(number, (ORDERS, changes), after=Reached(number - 1, 0))

    def _transaction(self, text: str) -> list[Change]:
        changes: list[Change] = []
        for _ in range(30):
            old, new = (
                self.random.choice(list(self.rows)),
                key(self.random.randrange(200)),
            )
            kind = self.random.choice(("insert", "update", "update", "delete", "move"))
            if kind == "update":
                self.rows[old] = text
                changes.append((UPDATE, order(old, text)))
                continue
            if kind in {"delete", "move"}:
                changes.append((DELETE, order(old, self.rows.pop(old))))
            if kind in {"insert", "move"} and new not in self.rows:
                self.rows[new] = text
                changes.append((INSERT, order(new, text)))
        return changes


@pytest.fixture(params=["postgres"])
def copy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SinkCase:
    monkeypatch.setattr(mirror_writer, "MIN_BYTES", 1)
    monkeypatch.setattr(shares, "MIN_BYTES", 1)
    monkeypatch.setattr(mirror_writer, "LOCK_SECONDS", 1)
    return make_case(request.param, request)


def expected(rows: dict[int, str]) -> list[Row]:
    return sorted_rows(ORDERS, [order(*row) for row in rows.items()])


def buckets_written(case: SinkCase) -> int:
    """Returns how many buckets the ledger has of the newest epoch."""
    newest = "epoch = (SELECT max(epoch) FROM tidemark_ledger)"
    is_bucket = f"part LIKE 'log%/{buckets.COUNT}' AND row_count IS NOT NULL"
    return int(case.place.query(f"SELECT count(*) FROM tidemark_ledger WHERE {newest} AND {is_bucket}")[0][0])


@pytest.mark.parametrize("streamed", [False, True])
def test_a_death_between_two_commits(copy: SinkCase, streamed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target has some buckets. They are not written again: a row that somebody has removed from them stays removed. The
    others are written by the same driver, by one with one connection, and by one that divides the table otherwise."""
    if streamed:
        stream(monkeypatch)
    model, driver = Model(), Driver(copy, 1)
    driver.write(model.first())
    for number, (owner, connections) in enumerate(((1, 2), (2, 1), (4, 3)), 2):
        before = dict(model.rows)
        part = model.epoch(number)
        die(driver, "shares.filled", part)
        assert copy.rows(ORDERS) == expected(before)
        die(driver, "shares.committed", part)
        written = {row: text for row, text in model.rows.items() if bucket_of(row) in ODD}
        kept = {row: text for row, text in before.items() if bucket_of(row) not in ODD}
        assert copy.rows(ORDERS) == expected(written | kept)
        assert buckets_written(copy) == len(ODD)
        assert driver.sink.written(driver.job).begun == number
        lost = next(row for row, text in written.items() if text.startswith(f"{number}/"))
        copy.place.execute(f"DELETE FROM {target_name(copy, ORDERS)} WHERE id = {lost}")
        if owner != driver.job.owner:
            driver = Driver(copy, owner, connections)
        assert [result.skipped for result in driver.write(part)] == [False]
        assert copy.rows(ORDERS) == expected({row: text for row, text in model.rows.items() if row != lost})
        assert [result.skipped for result in driver.write(part)] == [True]
        copy.place.execute(
            f"INSERT INTO {target_name(copy, ORDERS)} (id, customer) VALUES ({lost}, '{model.rows[lost]}')"
        )
        assert copy.rows(ORDERS) == expected(model.rows)
        driver = Driver(copy, owner + 1)
    driver.write(model.epoch(5))
    assert copy.rows(ORDERS) == expected(model.rows)
    assert buckets_written(copy) == buckets.COUNT
    assert copy.place.query("SELECT count(*) FROM tidemark_ledger WHERE epoch < 5 AND part LIKE 'log%'") == [(0,)]


def test_what_is_written_whole(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that was truncated, and a copy in which rows of different keys may depend on each other."""
    model, driver, table = Model(), Driver(copy, 1), target_name(copy, ORDERS)
    driver.write(model.first())
    before = [(INSERT, order(key(number), "lost")) for number in range(300, 310)]
    model.rows = {key(number): "kept" for number in range(20)}
    after = [(INSERT, order(*row)) for row in model.rows.items()]
    driver.write(log_part(2, (ORDERS, before), (ORDERS, EMPTIED), (ORDERS, after), after=Reached(0, 1)))
    assert (copy.rows(ORDERS), buckets_written(copy)) == (expected(model.rows), 0)
    copy.place.execute(f"CREATE UNIQUE INDEX another ON {table} (amount)")
    driver.write(model.updates(3))
    assert (copy.rows(ORDERS), buckets_written(copy)) == (expected(model.rows), 0)
    copy.place.execute("DROP INDEX another", "CREATE TABLE counted (times INT)")
    driver.write(model.updates(4))
    assert (copy.rows(ORDERS), buckets_written(copy)) == (expected(model.rows), buckets.COUNT)
    stream(monkeypatch)
    early, late = [(INSERT, order(1, "early"))], [(INSERT, order(2, "late"))]
    emptied = log_part(5, (ORDERS, early), (ORDERS, EMPTIED), (ORDERS, late), after=Reached(4, 0))
    with pytest.raises(SinkBusyError, match=r"one will.*shop\.orders: .* since it was truncated"):
        driver.write(emptied)
    assert copy.rows(ORDERS) == expected(model.rows)
    driver.write(emptied)
    model.rows = {2: "late"}
    assert (copy.rows(ORDERS), buckets_written(copy)) == (expected(model.rows), 0)
    copy.place.execute(f"CREATE RULE counting AS ON DELETE TO {table} DO ALSO INSERT INTO counted VALUES (1)")
    driver.write(model.updates(6))
    assert (copy.rows(ORDERS), buckets_written(copy)) == (expected(model.rows), 0)


@pytest.mark.parametrize("copy", ["mysql", "mariadb"], indirect=True)
def test_innodb_is_written_whole(copy: SinkCase) -> None:
    """Its locks are not of single rows only: the connections would wait for each other."""
    model, driver = Model(), Driver(copy, 1)
    driver.write(model.first(), model.epoch(2))
    assert (copy.rows(ORDERS), buckets_written(copy)) == (expected(model.rows), 0)
    assert copy.place.query("SELECT count(*) FROM tidemark_ledger WHERE epoch = 2") == [(2,)]


def test_values_that_the_log_leaves_out(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same key they are in the same bucket. A row whose key changed has them in another one."""
    driver = DriverOfPosts(copy, 1)
    rows = {key(number): (number, f"long {number}") for number in range(20)}
    driver.write(snapshot_part(1, 1, POSTS, [(row, *values) for row, values in rows.items()]))
    rows = {row: (stars + 1, body) for row, (stars, body) in rows.items()}
    changed = [(UPDATE, (row, stars, UNCHANGED)) for row, (stars, _) in rows.items()]
    driver.write(log_part(2, (POSTS, changed), after=Reached(0, 1)))
    assert buckets_written(copy) == buckets.COUNT
    for number, old, new in ((3, 1, 101), (4, 2, 102)):
        stars, body = rows.pop(key(old))
        rows[key(new)] = (stars + 9, body)
        moved = [(DELETE, (key(old), None, None)), (INSERT, (key(new), stars + 9, UNCHANGED))]
        other = [(UPDATE, (key(5), number, UNCHANGED))]
        rows[key(5)] = (number, "long 5")
        part = log_part(number, (POSTS, other), (POSTS, moved), after=Reached(number - 1, 0))
        if number == 4:
            stream(monkeypatch)
            with pytest.raises(SinkBusyError, match="since the log leaves values out of a row whose key changed"):
                driver.write(part)
        driver.write(part)
        assert buckets_written(copy) == 0
        assert copy.rows(POSTS) == sorted_rows(POSTS, [(row, *values) for row, values in rows.items()])


def test_rejected_rows_are_of_their_buckets(copy: SinkCase) -> None:
    """Also if a process dies between the commits of two buckets, and if their keys change later."""
    model, driver = Model(), Driver(copy, 1)
    driver.sink = replace(driver.sink, policies=Policies("reject"))
    driver.write(model.first())
    rejected = [key(number) for number in range(10)]
    bad = log_part(2, (ORDERS, [(UPDATE, order(row, "NUL \0")) for row in rejected]), after=Reached(0, 1))
    die(driver, "shares.committed", bad)
    in_odd = sum(bucket_of(row) in ODD for row in rejected)
    assert 0 < in_odd < len(rejected)
    assert copy.place.query("SELECT count(*) FROM tidemark_rejects") == [(in_odd,)]
    (result,) = driver.write(bad)
    assert sum(told.count for told in result.bad_values) == len(rejected) - in_odd
    assert copy.place.query("SELECT count(*) FROM tidemark_rejects") == [(len(rejected),)]
    assert copy.rows(ORDERS) == expected({row: text for row, text in model.rows.items() if row not in rejected})
    gone, moved, good = rejected[:3], rejected[3:6], rejected[6:]
    changes: list[Change] = [(DELETE, order(row, "")) for row in (*gone, *moved)]
    changes += [(INSERT, order(row + key(500), "moved")) for row in moved]
    changes += [(UPDATE, order(row, "good")) for row in good]
    driver.write(log_part(3, (ORDERS, changes), after=Reached(2, 0)))
    assert buckets_written(copy) == buckets.COUNT
    assert copy.place.query("SELECT count(*) FROM tidemark_rejects") == [(0,)]
    model.rows = {row: text for row, text in model.rows.items() if row not in rejected}
    model.rows |= dict.fromkeys((row + key(500) for row in moved), "moved") | dict.fromkeys(good, "good")
    assert copy.rows(ORDERS) == expected(model.rows)


def test_an_epoch_that_an_earlier_version_has_written_in_part(copy: SinkCase) -> None:
    """It has an entry for the whole table, which is not written again."""
    model, driver = Model(), Driver(copy, 1)
    driver.write(model.first())
    before = dict(model.rows)
    part = model.epoch(2)
    changes = sum(item.rows.num_rows for item in part if isinstance(item, ChangeBatch))
    entry = (driver.job.uuid, 2, table_part(ORDERS.table))
    with closing(driver.sink.connect()) as session:
        session.execute(
            "INSERT INTO tidemark_ledger (job_uuid, epoch, part, row_count) VALUES (%s, %s, %s, %s)",
            (*entry, changes + 1),
        )
        session.end_transaction("testing")
        with pytest.raises(SinkError, match=rf"has {changes} changes of shop\.orders now, but had {changes + 1}"):
            driver.write(part)
        session.execute(
            "UPDATE tidemark_ledger SET row_count = %s WHERE job_uuid = %s AND epoch = %s AND part = %s",
            (changes, *entry),
        )
        session.end_transaction("testing")
    driver.write(part)
    assert copy.rows(ORDERS) == expected(before)
    assert buckets_written(copy) == 0


def test_another_number_of_changes_in_a_bucket_is_refused(copy: SinkCase) -> None:
    model, driver = Model(), Driver(copy, 1)
    driver.write(model.first())
    die(driver, "shares.committed", model.epoch(2))
    for connections in (2, 1):
        with pytest.raises(SinkError, match=r"changes of shop\.orders now, but had"):
            Driver(copy, 4 - connections, connections).write(model.epoch(2))


def test_an_error_in_one_bucket_leaves_nothing_of_the_epoch(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection tells it."""
    stream(monkeypatch)
    model, driver, table = Model(), Driver(copy, 1), target_name(copy, ORDERS)
    driver.write(model.first())
    before = dict(model.rows)
    part = model.epoch(2)
    bad = next(row for row in model.rows if row not in before and bucket_of(row) in ODD)
    copy.place.execute(f"ALTER TABLE {table} ADD CONSTRAINT few CHECK (id <> {bad})")
    with pytest.raises(SinkBusyError, match="Several connections could not write part log of epoch 2"):
        driver.write(part)
    with pytest.raises(RefusedRowsError, match="few"):
        driver.write(part)
    assert copy.rows(ORDERS) == expected(before)
    copy.place.execute(f"ALTER TABLE {table} DROP CONSTRAINT few")
    driver.write(part)
    assert copy.rows(ORDERS) == expected(model.rows)


@pytest.mark.pitfall(89)
def test_a_bucket_that_is_about_to_be_committed_is_waited_for(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its attempt has lost its other connection. The next one, by one connection, must know whether the bucket is there."""
    model, driver = Model(), Driver(copy, 1)
    driver.write(model.first())
    part = model.epoch(2)
    row = next(row for row, text in model.rows.items() if text.startswith("2/"))
    bucket = bucket_of(row)
    batches = [item.rows for item in part if isinstance(item, ChangeBatch)]
    count = sum(int((buckets_of(ORDERS, rows) == bucket).sum()) for rows in batches)
    entry = bucket_part(ORDERS.table, bucket)
    monkeypatch.setattr(mirror_writer, "MIN_BYTES", 1 << 20)
    with closing(driver.sink.connect()) as late, ThreadPoolExecutor(1) as threads:
        late.begin_share(driver.job, 2)
        late.claim_entries([entry])
        writing = threads.submit(driver.write, part)
        wait_for_lock(copy)
        late.note_entries({entry: count})
        late.commit_share(Reached(0, 1))
        assert [result.skipped for result in writing.result()] == [False]
    found = dict(copy.place.query(f"SELECT id, customer FROM {target_name(copy, ORDERS)}"))
    others = {number: text for number, text in model.rows.items() if bucket_of(number) != bucket}
    assert {number: text for number, text in found.items() if bucket_of(number) != bucket} == others
    assert found.get(row) != model.rows[row]


@pytest.mark.pitfall(89)
def test_a_frozen_driver_commits_no_bucket_after_a_take_over(copy: SinkCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """It froze between two commits. What it has committed is left as it is, and the other driver writes the rest."""
    model, first = Model(), Driver(copy, 1, 3)
    first.write(model.first())
    part = model.epoch(2)
    reached, thawed, gates = threading.Event(), threading.Event(), iter([True])

    def freeze(name: str) -> None:
        if name == "shares.committed" and next(gates, False):
            reached.set()
            assert thawed.wait(100)

    monkeypatch.setattr(shares, "failpoint", freeze)
    with ThreadPoolExecutor(1) as frozen:
        writing = frozen.submit(first.write, part)
        try:
            assert reached.wait(30)
            Driver(copy, 2).write(part, model.epoch(3))
        finally:
            thawed.set()
        with pytest.raises(JobHeldError):
            writing.result()
    assert copy.rows(ORDERS) == expected(model.rows)
