"""The rows that a mirror writes depend neither on settings of the target's server, database or role, nor on what an existing
copy's columns do by themselves."""

import contextlib
import dataclasses
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.change_parts import DELETE, ORDERS, SCHEMAS, column, log_part, snapshot_part
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import KEEPING, TEMPLATE, make_case, target_name
from tidemark.conf.endpoint import parse_endpoint
from tidemark.sinks.audit import AuditColumns
from tidemark.sinks.mirror.bad_values import STOP
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.errors import RefusedRowsError, SinkError

pytestmark = pytest.mark.integration

HARMFUL = {
    "array_nulls": "off",
    "extra_float_digits": "-10",
    "quote_all_identifiers": "on",
    "datestyle": "'SQL, DMY'",
    "intervalstyle": "'sql_standard'",
    "bytea_output": "'escape'",
    "standard_conforming_strings": "off",
    "default_transaction_isolation": "'serializable'",
    "default_transaction_read_only": "on",
    "statement_timeout": "5000",  # not shorter: it holds until the session has set its own, however slow the machine is
    "timezone": "'America/St_Johns'",
    "client_encoding": "'LATIN1'",
}
VALUES = {
    "labels": ("text[]", "'{a,NULL,\"b\"}'"),
    "place": ("point", "'(0.1234567890123456,-1e-300)'"),
    "single": ("real[]", "'{0.1,NULL,1e-45}'"),
    "bytes": ("bytea[]", r"""'{"\\x00ff"}'"""),
    "at": ("timestamptz[]", "'{2024-03-31 01:30:00+00}'"),
    "span": ("interval", "'-1 mon 3 days -04:05:06.7'"),
    "cost": ("money", "'-1234.56'"),
    "name": ("text", r"'it''s \ é 😀'"),
}


def texts(database: Database) -> list[tuple[str, ...]]:
    listed = ", ".join(f"concat({name})" for name in VALUES)
    found: list[tuple[str, ...]] = database.query(f"SELECT {listed} FROM kept ORDER BY id")
    return found


@pytest.mark.parametrize("kind", ["postgres_database", "postgres18_database"])
def test_settings_of_the_database_change_no_value(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source: Database = request.getfixturevalue(kind)
    columns = ", ".join(f"{name} {sql_type}" for name, (sql_type, _) in VALUES.items())
    row = ", ".join(value for _, value in VALUES.values())
    source.execute(f"CREATE TABLE kept (id int PRIMARY KEY, {columns})", f"INSERT INTO kept VALUES (1, {row})")
    with fresh_database(source.server) as target:
        has_timeout = bool(target.query("SELECT 1 FROM pg_settings WHERE name = 'transaction_timeout'"))
        settings = HARMFUL | ({"transaction_timeout": "5000"} if has_timeout else {})
        target.execute(*(f'ALTER DATABASE "{target.name}" SET {name} = {value}' for name, value in settings.items()))
        sink = MirrorSink(parse_endpoint(target.url), TEMPLATE, None, "postgresql", STOP)
        with contextlib.closing(sink.connect()) as session:
            for name in settings:
                if name.endswith("_timeout"):
                    assert session.query(f"SHOW {name}") == [("0",)]
        path = write_job(
            tmp_path, source=source_of(source), sink={"type": "mirror", "url": target.url, "table": "{table}"}
        )
        run_epochs(path)
        source.execute(f"INSERT INTO kept VALUES (2, {row})", "UPDATE kept SET id = 3 WHERE id = 1")
        run_epochs(path)
        source.execute(f'ALTER DATABASE "{target.name}" RESET ALL')
        assert texts(target) == texts(source)
        assert target.query("SELECT labels[2] IS NULL FROM kept") == [(True,), (True,)]


@contextlib.contextmanager
def global_settings(database: Database, **settings: int) -> Iterator[None]:
    before = {name: database.query(f"SELECT @@global.{name}")[0][0] for name in settings}
    try:
        for name, value in settings.items():
            database.execute(f"SET GLOBAL {name} = {value}")
        yield
    finally:
        for name, value in before.items():
            database.execute(f"SET GLOBAL {name} = {value}")


def test_limits_of_the_server_cut_off_no_rejected_rows(request: pytest.FixtureRequest) -> None:
    """`tidemark_rejects` is read by SELECT: an entry that was not found would stay."""
    copy = make_case("mysql", request)
    with global_settings(copy.place, sql_select_limit=1, max_execution_time=1):
        assert isinstance(copy.sink, MirrorSink)
        with contextlib.closing(copy.sink.connect()) as session:
            assert session.query("SELECT 1 UNION ALL SELECT 2") == [(1,), (2,)]
            assert session.query("SELECT @@max_execution_time") == [(0,)]


def test_settings_of_a_mariadb_server_stop_no_job(request: pytest.FixtureRequest) -> None:
    """With `sql_if_exists` the server refuses CREATE TABLE IF NOT EXISTS of a table that exists. With the others it ends a
    connection whose transaction waits for rows."""
    copy = make_case("mariadb", request)
    assert isinstance(copy.sink, MirrorSink)
    with global_settings(copy.place, sql_if_exists=1, idle_transaction_timeout=1, idle_write_transaction_timeout=1):
        for number in (1, 2):
            copy.sink.prepare(copy.job, [ORDERS])
            copy.write(snapshot_part(number, number, ORDERS, [(number, "a", None, None, None)]), schemas=SCHEMAS)
        with contextlib.closing(copy.sink.connect()) as session:
            query = "SELECT @@idle_transaction_timeout, @@idle_write_transaction_timeout"
            assert session.query(query) == [(0, 0)]


TIMED = dataclasses.replace(ORDERS, columns=(ORDERS.columns[0], column("seen", "timestamp", "timestamptz")))
OF_TIMED = {(TIMED.table, 1): TIMED}
MOMENT = 1_000_000_000_000_000


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("audit", [KEEPING, AuditColumns(deleted="_deleted")])
def test_a_deleted_row_keeps_times_that_the_server_sets_on_update(
    kind: str, audit: AuditColumns, request: pytest.FixtureRequest
) -> None:
    copy = make_case(kind, request)
    assert isinstance(copy.sink, MirrorSink)
    copy.sink = dataclasses.replace(copy.sink, audit=audit)
    copy.place.execute(
        f"CREATE TABLE {target_name(copy, TIMED)} (id bigint PRIMARY KEY, _deleted boolean, _synced_at datetime(6), "
        "seen timestamp NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP)"
    )
    copy.sink.prepare(copy.job, [TIMED])
    copy.write(snapshot_part(1, 1, TIMED, [(1, MOMENT), (2, MOMENT)]), schemas=OF_TIMED)
    copy.write(log_part(2, (TIMED, [(DELETE, (1, MOMENT))])), schemas=OF_TIMED)
    assert copy.place.query(
        f"SELECT id, UNIX_TIMESTAMP(seen) * 1000000 FROM {target_name(copy, TIMED)} ORDER BY id"
    ) == [
        (1, MOMENT),
        (2, MOMENT),
    ]


def test_a_null_does_not_become_the_present_time(request: pytest.FixtureRequest) -> None:
    """MariaDB before 10.10, and any server with explicit_defaults_for_timestamp = OFF."""
    copy = make_case("mariadb", request)
    strict = dataclasses.replace(
        TIMED, columns=(TIMED.columns[0], dataclasses.replace(TIMED.columns[1], nullable=False))
    )
    with global_settings(copy.place, explicit_defaults_for_timestamp=0):
        copy.place.execute(f"CREATE TABLE {target_name(copy, TIMED)} (id bigint PRIMARY KEY, seen timestamp NOT NULL)")
        copy.sink.prepare(copy.job, [strict])
        with pytest.raises(RefusedRowsError, match=r"column seen is null \(perhaps a zero date\)") as refused:
            copy.write(snapshot_part(1, 1, strict, [(1, None)]), schemas={(strict.table, 1): strict})
        copy.sink.prepare(copy.job, [strict])
    assert copy.place.query(f"SELECT * FROM {target_name(copy, TIMED)}") == []
    assert refused.value.table in (None, strict.table)


def test_a_later_table_that_the_target_can_not_have_stops_no_other(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """Its key is too long for InnoDB, which only the server knows."""
    postgres_database.execute("CREATE TABLE good (id int PRIMARY KEY)", "INSERT INTO good VALUES (1)")
    sink = {"type": "mirror", "url": f"{mysql_database.server.url}{mysql_database.name}", "table": "{table}"}
    path = write_job(tmp_path, source=source_of(postgres_database, on_table_error="park"), sink=sink)
    run_epochs(path)
    postgres_database.execute(
        "CREATE TABLE long (a varchar(700), b varchar(700), PRIMARY KEY (a, b))", "INSERT INTO good VALUES (2)"
    )
    for _ in range(2):
        run_epochs(path, notes=(notes := Notes()))
        assert any("max key length" in facts.get("text", "") for event, facts in notes.found if event == "parked")
    assert mysql_database.query("SELECT id FROM good ORDER BY id") == [(1,), (2,)]


def test_labels_that_the_target_takes_for_one(mysql_database: Database, tmp_path: Path) -> None:
    """A source without strict mode has such an ENUM. An ENUM of the copy would hold the first label for both."""
    lenient = "SET sql_mode = ''"
    cased = "cased (id INT PRIMARY KEY, e ENUM('a', 'A') COLLATE utf8mb4_general_ci)"
    accented = "accented (id INT PRIMARY KEY, e ENUM('a', 'á') COLLATE utf8mb4_general_ci)"
    mysql_database.execute("CREATE TABLE good (id INT PRIMARY KEY)", "INSERT INTO good VALUES (1)")
    with fresh_database(mysql_database.server) as target:
        sink = {"type": "mirror", "url": target.url, "table": "{table}"}
        path = write_job(tmp_path, source=source_of(mysql_database, on_table_error="park"), sink=sink)
        run_epochs(path)
        mysql_database.execute(lenient, f"CREATE TABLE {cased}", "INSERT INTO cased VALUES (1, 1), (2, 2)")
        mysql_database.execute(lenient, f"CREATE TABLE {accented}", "INSERT INTO good VALUES (2)")
        run_epochs(path, notes=(notes := Notes()))
        (parked,) = [facts for event, facts in notes.found if event == "parked"]
        assert parked["table"].endswith(".accented")
        assert "duplicated value 'a' in ENUM" in parked["text"]
        mysql_database.execute("UPDATE cased SET id = id + 10")
        run_epochs(path)
        assert target.query("SELECT id FROM good ORDER BY id") == [(1,), (2,)]
        assert target.query("SELECT id, e FROM cased ORDER BY id") == [(11, "a"), (12, "A")]
    with fresh_database(mysql_database.server) as target:
        target.execute(lenient, f"CREATE TABLE {cased}")
        sink = {"type": "mirror", "url": target.url, "table": "{table}"}
        (other := tmp_path / "other").mkdir()
        source = source_of(mysql_database, tables=[f"{mysql_database.name}.cased"])
        with pytest.raises(SinkError, match=r"column e is enum.*, and its collation utf8mb4_general_ci takes some of"):
            run_epochs(write_job(other, source=source, sink=sink))


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_percent_sign_in_the_schema_of_the_ledger(kind: str, request: pytest.FixtureRequest) -> None:
    place: Database = request.getfixturevalue(f"{kind}_database")
    name = f"{place.name[-9:]} 50%s"
    quoted = f'"{name}"' if kind == "postgres" else f"`{name}`"
    place.execute(f"CREATE SCHEMA {quoted}")
    if kind == "postgres":
        place.execute(f'ALTER DATABASE "{place.name}" SET search_path = {quoted}')
        url = place.url
    else:
        url = f"{place.server.url}{quote(name)}"
    sink = MirrorSink(parse_endpoint(url), TEMPLATE, None, "mysql", STOP)
    job = JobIdentity(str(uuid.uuid4()), "odd", 1)
    try:
        for _ in range(2):
            sink.prepare(job, [ORDERS])
        (result,) = sink.writer(job).write(snapshot_part(1, 1, ORDERS, [(1, "Ada", None, 1, None)]), SCHEMAS)
        assert not result.skipped
        assert place.query(f"SELECT id FROM {quoted}.shop_orders") == [(1,)]
    finally:
        place.execute(f"DROP SCHEMA {quoted}{' CASCADE' if kind == 'postgres' else ''}")
