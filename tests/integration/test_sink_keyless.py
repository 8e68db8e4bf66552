"""Tables without a key in mirrors (`sink.keyless: append`): rows are appended exactly once; what needs a key parks the
table."""

import dataclasses
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_reconcile import compared
from tests.integration.test_sink_mirror_errors import STREAMED, Breaking
from tests.support.change_parts import (
    DELETE,
    INSERT,
    ORDERS,
    TRUNCATE,
    UPDATE,
    Change,
    column,
    log_part,
    snapshot_part,
)
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.keyless import CREATE
from tests.support.servers import Database
from tests.support.sink_state import SinkCase, any_mirror, target_name  # noqa: F401  # fixtures
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.sources import find_source
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.bad_values import Policies
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import PartResult, SinkBusyError
from tidemark.state import failpoints
from tidemark.state.errors import CheckpointError, SinkError
from tidemark.state.failpoints import FailpointError
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

EVENTS = TableSchema(
    TableId("shop", "events"), 1, (column("what", "varchar(20)", "string"), column("n", "double", "float64")), ()
)
SCHEMAS = {(schema.table, 1): schema for schema in (EVENTS, ORDERS)}
PAIRS = [("mysql", "postgres"), ("mysql_nogtid", "mariadb"), ("mariadb", "mysql"), ("postgres", "mysql")]
PAIRS += [("postgres18", "postgres")]


@pytest.fixture
def copy(any_mirror: SinkCase, monkeypatch: pytest.MonkeyPatch) -> SinkCase:  # noqa: F811
    monkeypatch.setattr(mirror_writer, "FIRST_DELAY_SECONDS", 0.01)
    assert isinstance(any_mirror.sink, MirrorSink)
    any_mirror.sink = dataclasses.replace(any_mirror.sink, appends_keyless=True)
    any_mirror.sink.prepare(any_mirror.job, [EVENTS, ORDERS])
    return any_mirror


def held(case: SinkCase) -> Counter[Any]:
    there = " WHERE _deleted IS FALSE" if case.keeps_deleted else ""
    return Counter(case.place.query(f"SELECT what, n FROM {target_name(case, EVENTS)}{there}"))


def write(case: SinkCase, items: Any) -> list[PartResult]:
    return case.write(items, schemas=SCHEMAS)


def test_equal_rows_are_appended_once(copy: SinkCase) -> None:
    parts = [
        snapshot_part(1, 1, EVENTS, [("a", 1.0), ("a", 1.0)]),
        log_part(2, (EVENTS, [(INSERT, ("a", 1.0)), (INSERT, (None, None))])),
    ]
    for skipped in (False, True):
        assert [result.skipped for items in parts for result in write(copy, items)] == [skipped, skipped]
        assert held(copy) == {("a", 1.0): 3, (None, None): 1}
    gone: tuple[TableSchema, list[Change]] = (EVENTS, [(TRUNCATE, (None, None))])
    write(copy, log_part(3, (EVENTS, [(INSERT, ("b", 1.0))]), gone, (EVENTS, [(INSERT, ("c", 1.0))])))
    assert held(copy) == {("c", 1.0): 1}


@pytest.mark.servers_in_turn("streamed")  # each copy in one of the two ways
@STREAMED
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_no_row_is_doubled_by_a_connection_lost_at_any_statement(
    copy: SinkCase, streamed: bool, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if streamed:
        monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", 1)
    for step in itertools.count(1):
        breaking, epoch = Breaking(step, after=after), 10 + step
        row = (f"e{step}", 1.0)
        items = log_part(epoch, (EVENTS, [(INSERT, row)]), (EVENTS, [(INSERT, row)]))
        with monkeypatch.context() as patched:
            breaking.install(patched)
            try:
                write(copy, items)
            except SinkBusyError:
                assert held(copy)[row] == 0
                write(copy, items)
        assert held(copy)[row] == 2
        assert [result.skipped for result in write(copy, items)] == [True]
        if not breaking.broke:
            break
    assert step > 5


@pytest.mark.parametrize("change", [(DELETE, ("a", 1.0)), (UPDATE, ("a", 2.0))])
def test_what_needs_a_key_concerns_the_table_and_leaves_nothing(copy: SinkCase, change: Change) -> None:
    write(copy, snapshot_part(1, 1, EVENTS, [("a", 1.0)]))
    order = (1, "Ada", None, 1, None)
    with pytest.raises(SinkError, match="has no key, and a row of it was updated or deleted") as caught:
        write(copy, log_part(2, (ORDERS, [(INSERT, order)]), (EVENTS, [(INSERT, ("b", 1.0)), change])))
    assert caught.value.table == EVENTS.table
    assert held(copy) == {("a", 1.0): 1}
    assert copy.rows(ORDERS) == []


def test_rejected_rows(copy: SinkCase) -> None:
    assert isinstance(copy.sink, MirrorSink)
    copy.sink = dataclasses.replace(copy.sink, policies=Policies("reject"))
    bad = ("a\0b", 1.0) if copy.kind == "postgres" else ("ab", float("inf"))
    write(copy, log_part(2, (EVENTS, [(INSERT, bad), (INSERT, bad), (INSERT, ("a", 1.0))])))
    assert held(copy) == {("a", 1.0): 1}
    assert copy.place.query("SELECT count(*) FROM tidemark_rejects") == [(2,)]
    write(copy, log_part(3, (EVENTS, [(TRUNCATE, (None, None))])))
    assert copy.place.query("SELECT count(*) FROM tidemark_rejects") == [(0,)]


def test_a_copy_may_number_its_rows(any_mirror: SinkCase) -> None:  # noqa: F811
    assert isinstance(any_mirror.sink, MirrorSink)
    copy = any_mirror
    copy.sink = dataclasses.replace(any_mirror.sink, appends_keyless=True)
    copy.sink.prepare(copy.job, [EVENTS])
    number = "BIGINT GENERATED BY DEFAULT AS IDENTITY" if copy.kind == "postgres" else "BIGINT AUTO_INCREMENT"
    copy.place.execute(f"ALTER TABLE {target_name(copy, EVENTS)} ADD COLUMN row_number_ {number} PRIMARY KEY")
    write(copy, snapshot_part(1, 1, EVENTS, [("a", 1.0), ("b", 1.0)]))
    assert held(copy) == {("a", 1.0): 1, ("b", 1.0): 1}
    copy.place.execute(
        f"ALTER TABLE {target_name(copy, EVENTS)} DROP COLUMN row_number_, ADD PRIMARY KEY (what)",
    )
    with pytest.raises(SinkError, match=r"has the primary key \(what\), the source \(none\)"):
        write(copy, snapshot_part(1, 2, EVENTS, [("c", 1.0)]))


class Case:
    """A job with a table without a key, `events`, and one with a key, `notes`."""

    def __init__(self, kinds: tuple[str, str], request: pytest.FixtureRequest, folder: Path) -> None:
        self.source: Database = request.getfixturevalue(f"{kinds[0]}_database")
        target: Database = request.getfixturevalue(f"{kinds[1]}_database")
        self.target, self.folder = target, folder
        self.source.execute("CREATE TABLE events (n INT, what VARCHAR(20))", "CREATE TABLE notes (id INT PRIMARY KEY)")
        if self.source.kind == "postgres":
            self.source.execute("ALTER TABLE events REPLICA IDENTITY FULL")
        self.append(0, 50)
        self.path = self.job_of("append")

    def job_of(self, keyless: str) -> Path:
        sink = {"type": "mirror", "url": self.target.url, "table": "copy_{table}", "keyless": keyless}
        source = source_of(self.source, on_table_error="park")
        return write_job(self.folder, source=source, sink=sink, snapshot={"split_rows": 20, "parallelism": 2})

    def append(self, start: int, count: int) -> None:
        """Each row of `events` twice."""
        rows = ", ".join(f"({n}, 'x{n % 3}')" for n in range(start, start + count))
        self.source.execute(
            f"INSERT INTO events VALUES {rows}, {rows}",
            f"INSERT INTO notes SELECT DISTINCT n FROM events WHERE n >= {start}",
        )

    def assert_equal(self) -> None:
        for table, order in (("events", "n, what"), ("notes", "id")):
            query = f"SELECT * FROM %s ORDER BY {order}"
            assert self.target.query(query % f"copy_{table}") == self.source.query(query % table), table

    def events(self) -> TableName:
        return TableName(self.source.schema, "events")


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    return Case(request.param, request, tmp_path)


on_all_pairs = pytest.mark.parametrize("case", PAIRS, indirect=True, ids=["-to-".join(pair) for pair in PAIRS])


@on_all_pairs
def test_a_job_appends_until_a_change_needs_a_key(case: Case) -> None:
    run_epochs(case.path)
    case.assert_equal()
    case.append(100, 30)
    run_epochs(case.path)
    case.assert_equal()
    assert compared(case.path)["events"].skipped == "it has no key"
    assert compared(case.path)["notes"].differences == 0
    case.append(200, 5)
    case.source.execute("UPDATE events SET what = 'new' WHERE n = 7")
    for _ in range(2):
        run_epochs(case.path, notes=(notes := Notes()))
        told = [facts for event, facts in notes.found if event == "parked"]
        assert [facts["table"] for facts in told] == [str(case.events())]
        assert "has no key, and a row of it was updated or deleted" in told[0]["text"]
        assert case.target.query("SELECT max(id), count(*) FROM copy_notes") == [(204, 85)]
        assert case.target.query("SELECT count(*) FROM copy_events") == [(160,)]
    resnapshot(load_job_file(case.path), [case.events()])
    run_epochs(case.path)
    case.assert_equal()
    case.append(300, 5)
    run_epochs(case.path)
    case.assert_equal()
    case.source.execute("TRUNCATE TABLE events", "INSERT INTO events VALUES (1, 'a'), (1, 'a')")
    run_epochs(case.path)
    case.assert_equal()


POINTS = [
    "planner.after_plan",
    "sink.before_commit",
    "sink.after_commit",
    "driver.epoch_written",
    "driver.epoch_committed",
]


@pytest.mark.servers_in_turn("case")
@pytest.mark.parametrize(
    ("when", "point"),
    [*itertools.product(["first load", "log"], POINTS), ("log", "log.before_report")],
)
@pytest.mark.parametrize("case", PAIRS[::3], indirect=True, ids=["mysql", "postgres"])
def test_no_row_is_doubled_by_a_death(case: Case, point: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    armed = case.folder / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    if when == "log":
        run_epochs(case.path)
        case.append(100, 10)
    (armed / point).write_text("raise")
    with pytest.raises(FailpointError):
        run_epochs(case.path)
    (armed / point).unlink(missing_ok=True)
    case.append(200, 10)
    run_epochs(case.path)
    case.assert_equal()


@pytest.mark.parametrize("point", [None, "sink.after_commit", "driver.epoch_written"])
def test_a_large_table_of_postgres_is_read_by_pages(
    postgres_database: Database,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str | None,
) -> None:
    postgres_database.execute(*CREATE)
    sink = {"type": "mirror", "url": mysql_database.url, "table": "copy_{table}", "keyless": "append"}
    snapshot = {"split_rows": 1000, "parallelism": 2}
    job = write_job(tmp_path, source=source_of(postgres_database), sink=sink, snapshot=snapshot)
    if point is not None:
        monkeypatch.setattr(failpoints, "_FOLDER", str(tmp_path))
        (tmp_path / point).write_text("raise")
        with pytest.raises(FailpointError):
            run_epochs(job)
        (tmp_path / point).unlink(missing_ok=True)
    postgres_database.execute("INSERT INTO t SELECT * FROM t LIMIT 100")
    run_epochs(job)
    query = "SELECT uid, version, note FROM %s"
    assert Counter(mysql_database.query(query % "copy_t")) == Counter(postgres_database.query(query % "t"))


def test_the_log_is_not_read_again_into_them(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case = Case(PAIRS[0], request, tmp_path)
    run_epochs(case.path)
    case.append(100, 10)
    run_epochs(case.path)
    with pytest.raises(CheckpointError, match="has no key, so its copy would get changes twice"):
        roll_back(load_job_file(case.path), 1, standby=True)


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_keys_that_are_not_exact_are_still_refused(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    case = Case((kind, "mariadb"), request, tmp_path)
    case.source.execute("CREATE TABLE inexact (f DOUBLE PRECISION PRIMARY KEY)")

    def refused(keyless: str) -> set[str]:
        with find_source(load_job_file(case.job_of(keyless))) as found:
            return {finding.table.name for finding in found.findings if finding.severity == "refuse" and finding.table}

    assert refused("append") == {"inexact"}
    assert refused("refuse") == {"inexact", "events"}
