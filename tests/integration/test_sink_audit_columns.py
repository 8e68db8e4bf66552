"""Audit columns of mirrors (`sink.audit_columns`): rows that the source has deleted stay with their last values, and each row
says when it was written. tests/property/test_sink_model.py and tests/contract have random changes and replays."""

import dataclasses
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_reconcile import assert_equal, compared, found_keys, row_counts
from tests.support.change_parts import DELETE, INSERT, ORDERS, TRUNCATE, UPDATE, Change, log_part, snapshot_part
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.sink_state import KEEPING, SinkCase, make_case, mirror, target_name  # noqa: F401  # fixtures
from tests.support.workload import KEYS, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.sinks.audit import AuditColumns
from tidemark.sinks.mirror.bad_values import Policies
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.state.errors import CheckpointError, SinkError
from tidemark.state.table import Column, TableId, TableSchema

pytestmark = pytest.mark.integration

AUDIT = {"deleted": "_deleted", "synced_at": "_synced_at"}
EVERY = pytest.mark.every_server
PAIRS = [
    pytest.param("mysql_database", "postgres_database", id="mysql-gtid-to-postgres"),
    pytest.param("mysql_nogtid_database", "mariadb_database", id="mysql-nogtid-to-mariadb", marks=EVERY),
    pytest.param("postgres18_database", "mysql_database", id="postgres18-to-mysql"),
    pytest.param("postgres18_database", "postgres_database", id="postgres18-to-postgres", marks=EVERY),
    pytest.param("mariadb_database", "postgres_database", id="mariadb-to-postgres", marks=EVERY),
]
on_all_pairs = pytest.mark.parametrize(("source", "target"), PAIRS, indirect=True)


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return (number, customer, None, number, None)


def keeping(case: SinkCase, audit: AuditColumns = KEEPING) -> SinkCase:
    assert isinstance(case.sink, MirrorSink)
    case.sink = dataclasses.replace(case.sink, audit=audit)
    return case


def marked(case: SinkCase, column: str) -> dict[int, Any]:
    return dict(case.place.query(f"SELECT id, {column} FROM {target_name(case, ORDERS)}"))


def truth(found: dict[int, Any]) -> dict[int, bool]:
    assert None not in found.values()
    return {number: bool(value) for number, value in found.items()}


def test_only_written_rows_get_a_new_time(mirror: SinkCase) -> None:  # noqa: F811
    copy = keeping(mirror)
    copy.sink.prepare(copy.job, [ORDERS])
    copy.write(snapshot_part(1, 1, ORDERS, [order(n) for n in range(1, 6)]))
    first = marked(copy, "_synced_at")
    assert len(set(first.values())) == 1, "one time for each transaction"
    assert truth(marked(copy, "_deleted")) == dict.fromkeys(range(1, 6), False)
    clock = "now() AT TIME ZONE 'UTC'" if copy.kind == "postgres" else "UTC_TIMESTAMP(6)"
    column = "_synced_at AT TIME ZONE 'UTC'" if copy.kind == "postgres" else "_synced_at"
    ((age,),) = copy.place.query(f"SELECT {clock} - {column} FROM {target_name(copy, ORDERS)} LIMIT 1")
    assert abs(age.total_seconds() if copy.kind == "postgres" else float(age)) < 300
    copy.write(log_part(2, (ORDERS, [(UPDATE, order(1, "Grace")), (DELETE, order(2)), (DELETE, order(3))])))
    second = marked(copy, "_synced_at")
    assert second[1] == second[2] == second[3] > first[1]
    assert (second[4], second[5]) == (first[4], first[5])
    copy.write(log_part(3, (ORDERS, [(INSERT, order(2, "back")), (DELETE, order(4)), (INSERT, order(9))])))
    third = marked(copy, "_synced_at")
    assert third[2] == third[4] == third[9] > second[1]
    assert third[3] == second[3], "it was deleted before"
    assert truth(marked(copy, "_deleted")) == {1: False, 2: False, 3: True, 4: True, 5: False, 9: False}
    assert copy.rows(ORDERS) == [order(1, "Grace"), order(2, "back"), order(5), order(9)]
    assert copy.deleted_rows(ORDERS) == [order(3), order(4)]


@pytest.mark.parametrize("audit", [AuditColumns(deleted="gone"), AuditColumns(synced_at="written")])
def test_one_of_the_columns_alone(mirror: SinkCase, audit: AuditColumns) -> None:  # noqa: F811
    copy = keeping(mirror, audit)
    copy.sink.prepare(copy.job, [ORDERS])
    copy.write(snapshot_part(1, 1, ORDERS, [order(1), order(2), order(3)]))
    copy.write(log_part(2, (ORDERS, [(DELETE, order(1)), (UPDATE, order(2, "Grace"))])))
    if audit.deleted:
        assert truth(marked(copy, "gone")) == {1: True, 2: False, 3: False}
    else:
        times = marked(copy, "written")
        assert times[2] > times[3]
        assert 1 not in times


def test_a_truncation_marks_all_rows_with_their_last_values(mirror: SinkCase) -> None:  # noqa: F811
    copy = keeping(mirror)
    copy.sink.prepare(copy.job, [ORDERS])
    copy.write(snapshot_part(1, 1, ORDERS, [order(1), order(2)]))
    gone: tuple[TableSchema, list[Change]] = (ORDERS, [(TRUNCATE, [None] * 5)])
    copy.write(
        log_part(
            2, (ORDERS, [(UPDATE, order(1, "last")), (INSERT, order(3))]), gone, (ORDERS, [(INSERT, order(2, "new"))])
        )
    )
    assert copy.rows(ORDERS) == [order(2, "new")]
    assert copy.deleted_rows(ORDERS) == [order(1, "last"), order(3)]


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_keys_that_the_target_takes_as_equal(kind: str, request: pytest.FixtureRequest) -> None:
    """A deleted row must not hide the one that follows it under an equal key, whatever their order in the target is."""
    copy = keeping(make_case(kind, request, source="postgresql"))
    key, texts = ("numeric", ["1.0", "1.00", "1.000"]) if kind == "postgres" else ("numeric(9,3)", ["1.000"] * 3)
    arrow = "string" if kind == "postgres" else "decimal(9,3)"
    columns = (Column("size", key, arrow, nullable=False), Column("n", "integer", "int32", nullable=True))
    schema = TableSchema(TableId("shop", "sizes"), 1, columns, ("size",))
    keys = texts if kind == "postgres" else [Decimal(text) for text in texts]
    copy.sink.prepare(copy.job, [schema])

    def write(epoch: int, *changes: tuple[Any, int, int]) -> list[tuple[str, int, bool]]:
        copy.write(
            log_part(epoch, (schema, [(kind, (keys[i], n)) for kind, i, n in changes])),
            schemas={(schema.table, 1): schema},
        )
        found = copy.place.query(f"SELECT size, n, _deleted FROM {target_name(copy, schema)}")
        return [(str(size), n, bool(deleted)) for size, n, deleted in found]

    assert write(1, (INSERT, 2, 1), (DELETE, 2, 1), (INSERT, 0, 2)) == [(texts[0], 2, False)]
    assert write(2, (DELETE, 0, 2), (INSERT, 1, 3), (DELETE, 1, 3), (INSERT, 0, 4), (DELETE, 0, 4)) == [
        (texts[0], 4, True)
    ]
    assert write(3, (INSERT, 1, 5), (DELETE, 1, 5), (INSERT, 2, 6), (DELETE, 2, 6), (INSERT, 1, 7)) == [
        (texts[1], 7, False)
    ]


def test_rejected_rows_are_marked_and_those_that_are_gone_are_in_no_table(mirror: SinkCase) -> None:  # noqa: F811
    copy = keeping(mirror)
    assert isinstance(copy.sink, MirrorSink)
    columns = (ORDERS.columns[0], dataclasses.replace(ORDERS.columns[1], source_type="varchar(60)"), ORDERS.columns[2])
    columns = (*columns[:2], Column("level", "double", "float64", nullable=True))
    schema = TableSchema(TableId("shop", "orders"), 1, columns, ("id",))
    copy.sink = dataclasses.replace(copy.sink, policies=Policies("reject"))
    copy.sink.prepare(copy.job, [schema])

    def row(number: int, *, bad: bool = False) -> tuple[Any, ...]:
        if copy.kind == "postgres":
            return (number, "a\0b" if bad else "ab", 1.0)
        return (number, "ab", float("inf") if bad else 1.0)

    def write(epoch: int, *changes: Change) -> list[str]:
        (result,) = copy.write(log_part(epoch, (schema, changes)), schemas={(schema.table, 1): schema})
        assert sum(told.count for told in result.bad_values) == (1 if epoch == 2 else 0)
        return [key for (key,) in copy.place.query("SELECT row_key FROM tidemark_rejects")]

    assert write(1, (INSERT, row(1)), (INSERT, row(2)), (INSERT, row(3, bad=True)), (DELETE, row(3, bad=True))) == []
    assert write(2, (UPDATE, row(1, bad=True))) == ['{"id":1}']
    assert truth(marked(copy, "_deleted")) == {1: True, 2: False}
    assert write(3, (UPDATE, row(1))) == []
    assert truth(marked(copy, "_deleted")) == {1: False, 2: False}


def test_a_source_column_of_that_name_is_refused(mirror: SinkCase) -> None:  # noqa: F811
    copy = keeping(mirror)
    columns = (*ORDERS.columns, Column("_Deleted", "int", "int32", nullable=True))
    schema = dataclasses.replace(ORDERS, columns=columns)
    if copy.kind == "postgres":
        schema = dataclasses.replace(
            schema, columns=(*ORDERS.columns, dataclasses.replace(columns[-1], name="_deleted"))
        )
    with pytest.raises(SinkError, match=r"column _[Dd]eleted has the name of a column in sink\.audit_columns.*exclude"):
        copy.sink.prepare(copy.job, [schema])
    assert isinstance(copy.sink, MirrorSink)
    copy.sink.prepare(copy.job, [ORDERS])
    with pytest.raises(SinkError, match=r"has the name of a column in sink\.audit_columns"):
        copy.sink.add_columns(copy.job, schema, [schema.columns[-1].name])


def test_a_copy_whose_rows_can_t_stay_is_refused(mirror: SinkCase) -> None:  # noqa: F811
    """A deleted row would keep its unique value from the row that has it now."""
    copy = keeping(mirror)
    copy.sink.prepare(copy.job, [ORDERS])
    copy.write(snapshot_part(1, 1, ORDERS, [order(1), order(2)]))
    copy.place.execute(f"ALTER TABLE {target_name(copy, ORDERS)} ADD UNIQUE (placed_at)")
    with pytest.raises(SinkError, match="can't keep deleted rows") as caught:
        copy.write(log_part(2, (ORDERS, [(DELETE, order(1)), (INSERT, (3, "Ada", None, 1, None))])))
    assert caught.value.table == ORDERS.table
    with pytest.raises(SinkError, match="can't keep deleted rows"):
        copy.sink.prepare(copy.job, [ORDERS], [ORDERS.table])
    assert copy.rows(ORDERS) == [order(1), order(2)]


def job_of(source: Database, target: Database, folder: Path, *, audit: Any = AUDIT, **changes: Any) -> Path:
    job = {
        "source": source_of(source, on_table_error="park"),
        "checkpoint": str(folder / "checkpoint"),
        "snapshot": {"split_rows": 40, "parallelism": 2},
        "sink": {"type": "mirror", "url": target.url, "table": "copy_{table}", "audit_columns": audit},
    }
    return write_job(folder, **(job | changes))


def uids(database: Database, table: str, condition: str = "TRUE") -> set[int]:
    return {uid for (uid,) in database.query(f"SELECT uid FROM {table} WHERE {condition}")}


@on_all_pairs
def test_a_job_keeps_deleted_rows_and_reconcile_takes_them_for_absent(
    source: Database, target: Database, tmp_path: Path
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    before = {table: uids(source, table) for table in KEYS}
    source.execute(
        "DELETE FROM orders WHERE id % 3 = 0",
        "DELETE FROM customers WHERE uid % 4 = 0",
        "UPDATE orders SET id = id + 1000 WHERE id % 5 = 0",
        "INSERT INTO orders (id, uid, version) VALUES (3, 9001, 1)",
        "TRUNCATE TABLE order_lines",
        "INSERT INTO order_lines (order_id, line_no, uid, version) VALUES (7, 1, 9002, 1)",
    )
    run_epochs(job)
    for table in KEYS:
        now = uids(source, table)
        assert uids(target, f"copy_{table}", "_deleted IS FALSE") == now
        if table == "customers":
            assert uids(target, f"copy_{table}", "_deleted IS TRUE") == before[table] - now
    assert uids(target, "copy_orders", "_deleted IS TRUE AND id = 10") == uids(source, "orders", "id = 1010")
    assert uids(target, "copy_orders", "id = 3") == {9001}
    assert_equal(job, row_counts(source))
    target.execute(
        "UPDATE copy_orders SET _deleted = TRUE WHERE id = 4", "UPDATE copy_orders SET _deleted = FALSE WHERE id = 6"
    )
    found = found_keys(compared(job)["orders"])
    assert found == {"missing": {("4",)}, "surplus": {("6",)}}


@on_all_pairs
def test_rows_that_only_the_copy_has_end_as_deleted_when_a_table_is_read_again(
    source: Database, target: Database, tmp_path: Path
) -> None:
    create_tables(source, rows=120, uids=Uids())
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    source.execute("DELETE FROM customers WHERE uid % 4 = 0")
    run_epochs(job)
    deleted = uids(target, "copy_customers", "_deleted IS TRUE")
    if source.kind != "postgres":  # a change that no log has
        source.execute("SET SESSION sql_log_bin = 0", "DELETE FROM customers WHERE uid % 4 = 1")
        deleted |= uids(target, "copy_customers", "uid % 4 = 1")
    source.execute("INSERT INTO customers (code, uid, version) VALUES ('new', 9003, 1)")
    resnapshot(load_job_file(job), [TableName(source.schema, "customers")])
    run_epochs(job)
    assert uids(target, "copy_customers", "_deleted IS TRUE") == deleted
    assert uids(target, "copy_customers", "_deleted IS FALSE") == uids(source, "customers")
    assert_equal(job, row_counts(source))


@pytest.mark.parametrize("now", [{}, {"deleted": "gone"}, {"synced_at": "_synced_at"}])
def test_the_setting_of_a_running_job_can_t_change(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, now: dict[str, str]
) -> None:
    mysql_database.execute("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    run_epochs(job_of(mysql_database, postgres_database, tmp_path))
    with pytest.raises(CheckpointError, match=r"started with sink\.audit_columns: deleted: _deleted, synced_at: _sync"):
        run_epochs(job_of(mysql_database, postgres_database, tmp_path, audit=now))
    run_epochs(job_of(mysql_database, postgres_database, tmp_path))


@pytest.mark.parametrize("kind", ["mariadb", "postgres"])
def test_a_column_that_the_source_gets_later_parks_its_table(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue("mysql_database")
    target: Database = request.getfixturevalue(f"{kind}_database")
    source.execute("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT PRIMARY KEY)")
    source.execute("INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (1)")
    job = job_of(source, target, tmp_path)
    job.write_text(job.read_text().replace("on_schema_change: stop", "on_schema_change: evolve"))
    run_epochs(job)
    source.execute("ALTER TABLE a ADD COLUMN _deleted INT", "INSERT INTO a VALUES (2, 5)", "INSERT INTO b VALUES (2)")
    for _ in range(2):
        run_epochs(job, notes=(notes := Notes()))
        assert target.query("SELECT id FROM copy_b ORDER BY id") == [(1,), (2,)]
        told = [facts["text"] for event, facts in notes.found if event in {"parked", "warning"}]
        assert any("sink.audit_columns" in text for text in told), told
    assert target.query("SELECT id, _deleted FROM copy_a WHERE _deleted IS TRUE") == []
