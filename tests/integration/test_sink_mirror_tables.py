"""How a mirror creates, checks, claims and refuses the target's tables."""

import dataclasses
import struct
from typing import Any

import pymysql
import pytest

from devtools.servers import start_server
from tests.support.change_parts import (
    DELETE,
    INSERT,
    ITEMS,
    NOTES,
    ORDERS,
    SCHEMAS,
    UNCHANGED,
    UPDATE,
    column,
    log_part,
    snapshot_part,
)
from tests.support.every_type import EVERY_TYPE
from tests.support.mysql_accounts import account
from tests.support.postgres_roles import role
from tests.support.servers import Database
from tests.support.sink_state import TEMPLATE, SinkCase, make_case, mirror, target_name  # noqa: F401  # a fixture
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.tables import parse_table_template
from tidemark.sinks.mirror.sink import OWN_DATABASE, MirrorSink
from tidemark.sinks.mirror.target import TargetName
from tidemark.sinks.sink import Finding, JobIdentity
from tidemark.state.errors import SinkError
from tidemark.state.table import Column, TableId, TableSchema

pytestmark = pytest.mark.integration

OTHER_JOB = JobIdentity("00000000-other", "other")


def problems(case: SinkCase, *schemas: TableSchema, job: JobIdentity | None = None) -> list[Finding]:
    return [finding for finding in case.sink.check(schemas, case.job if job is None else job) if finding.is_problem]


def routed(case: SinkCase, template: str) -> SinkCase:
    assert isinstance(case.sink, MirrorSink)
    return dataclasses.replace(case, sink=dataclasses.replace(case.sink, template=parse_table_template(template)))


def create(case: SinkCase, different: dict[str, str] | None = None) -> None:
    """A table that fits the orders, apart from what is `different`; a column with no type is left out."""
    columns = {**FITTING[case.kind], **(different or {})}
    listed = ", ".join(f"{name} {kind}" for name, kind in columns.items() if kind)
    case.place.execute(f"CREATE TABLE {target_name(case, ORDERS)} ({listed})")


FITTING = {
    "postgres": {
        "id": "bigint PRIMARY KEY",
        "customer": "varchar(60)",
        "amount": "numeric",
        "placed_at": "timestamp",
        "note": "text",
    },
    "mysql": {
        "id": "bigint PRIMARY KEY",
        "customer": "varchar(60)",
        "amount": "decimal(20,4)",
        "placed_at": "datetime(6)",
        "note": "mediumtext",
    },
}
FITTING["mariadb"] = FITTING["mysql"]


def test_missing_table_is_created_with_its_key(mirror: SinkCase) -> None:  # noqa: F811
    found = mirror.sink.check([ORDERS, ITEMS])
    assert sum("will be created as" in finding.text for finding in found) == 2
    mirror.sink.prepare(mirror.job, [ORDERS, ITEMS])
    assert mirror.sink.connect().inspect(place(mirror, "shop_items")).key == ("order_id", "sku")
    assert problems(mirror, ORDERS, ITEMS) == []


def place(case: SinkCase, table: str) -> TargetName:
    return TargetName("public" if case.kind == "postgres" else case.place.name, table)


def test_every_created_table_passes_its_own_check(mirror: SinkCase) -> None:  # noqa: F811
    """The mirror's own check accepts what the mirror creates, type by type."""
    mirror.sink.prepare(mirror.job, [EVERY_TYPE])
    assert problems(mirror, EVERY_TYPE) == []


def test_existing_empty_table_that_fits_is_used(mirror: SinkCase) -> None:  # noqa: F811
    create(mirror, {"more": "int DEFAULT 5", "filled": "int"})
    assert problems(mirror, ORDERS) == []
    mirror.sink.prepare(mirror.job, [ORDERS])
    mirror.write(snapshot_part(1, 1, ORDERS, [(1, "Ada", None, 0, "x")]))
    assert mirror.rows(ORDERS) == [(1, "Ada", None, 0, "x")]
    assert mirror.place.query(f"SELECT more, filled FROM {target_name(mirror, ORDERS)}") == [(5, None)]


def test_table_with_rows_of_somebody_else_is_refused(mirror: SinkCase) -> None:  # noqa: F811
    create(mirror)
    mirror.place.execute(f"INSERT INTO {target_name(mirror, ORDERS)} (id) VALUES (5)")
    with pytest.raises(SinkError, match="has rows that this job did not write") as caught:
        mirror.sink.prepare(mirror.job, [ORDERS, ITEMS])
    assert "Empty or drop that table" in caught.value.remedy
    listed = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s"
    assert mirror.place.query(listed, (place(mirror, "").schema,)) == [(1,)]


def test_two_jobs_do_not_share_a_table(mirror: SinkCase) -> None:  # noqa: F811
    mirror.sink.prepare(mirror.job, [ORDERS])
    mirror.sink.prepare(OTHER_JOB, [ITEMS])
    for job in (OTHER_JOB, None):
        found = [f for f in mirror.sink.check([ORDERS], job) if f.is_problem]
        assert len(found) == 1
        assert "belongs to job contract" in found[0].text
    with pytest.raises(SinkError, match="belongs to job contract"):
        mirror.sink.prepare(OTHER_JOB, [ORDERS])
    mirror.sink.prepare(mirror.job, [ORDERS])


WRONG: dict[str, list[tuple[dict[str, str], str]]] = {
    "mysql": [
        ({"customer": "varchar(59)"}, "customer"),
        ({"customer": "char(60)"}, "customer"),
        ({"customer": "varchar(60) NOT NULL"}, "customer"),
        ({"customer": "varchar(60) AS ('x')"}, "customer"),
        ({"id": "int PRIMARY KEY"}, "id"),
        ({"amount": "decimal(12,1)"}, "amount"),
        ({"amount": "double"}, "amount"),
        ({"placed_at": "datetime(3)"}, "placed_at"),
        ({"placed_at": "timestamp(6) NULL"}, "placed_at"),
        ({"note": "tinytext"}, "note"),
        ({"note": ""}, "note"),
        ({"x": "int NOT NULL"}, "x"),
        ({"id": "bigint"}, "primary key"),
        ({"id": "bigint", "customer": "varchar(60), PRIMARY KEY (id, customer)"}, "primary key"),
        (
            {"id": "bigint, PRIMARY KEY (id)", "parent": "bigint, FOREIGN KEY (parent) REFERENCES shop_orders (id)"},
            "foreign",
        ),
        ({}, "no transactions"),
    ],
    "postgres": [
        ({"customer": "varchar(59)"}, "customer"),
        ({"customer": "char(60)"}, "customer"),
        ({"customer": "text NOT NULL"}, "customer"),
        ({"customer": "text GENERATED ALWAYS AS ('x') STORED"}, "customer"),
        ({"id": "int PRIMARY KEY"}, "id"),
        ({"amount": "numeric(12,1)"}, "amount"),
        ({"amount": "float8"}, "amount"),
        ({"amount": "money"}, "amount"),
        ({"placed_at": "timestamp(3)"}, "placed_at"),
        ({"placed_at": "timestamptz"}, "placed_at"),
        ({"note": ""}, "note"),
        ({"x": "int NOT NULL"}, "x"),
        ({"id": "bigint"}, "primary key"),
        ({"parent": "bigint REFERENCES shop_orders (id)"}, "foreign keys"),
        ({}, "not logged"),
    ],
}
"""Differences from FITTING, and the text that the problem must have."""
WRONG["mariadb"] = WRONG["mysql"]


@pytest.mark.pitfall(81)
def test_existing_table_that_could_change_or_refuse_a_value_is_refused(mirror: SinkCase) -> None:  # noqa: F811
    for different, named in WRONG[mirror.kind]:
        create(mirror, different)
        if named == "no transactions":
            mirror.place.execute(f"ALTER TABLE {target_name(mirror, ORDERS)} ENGINE=MyISAM")
        if named == "not logged":
            mirror.place.execute(f"ALTER TABLE {target_name(mirror, ORDERS)} SET UNLOGGED")
        found = problems(mirror, ORDERS)
        assert any(named in finding.text for finding in found), (different, found)
        with pytest.raises(SinkError):
            mirror.sink.prepare(mirror.job, [ORDERS])
        mirror.place.execute(f"DROP TABLE {target_name(mirror, ORDERS)}")


@pytest.mark.pitfall(15)
def test_vectors_fit_into_bytes_of_postgres(request: pytest.FixtureRequest) -> None:
    copy = make_case("postgres", request)
    columns = (column("id", "int", "int32", key=True), column("v", "vector(3)", "list<float32>"))
    schema = TableSchema(TableId("shop", "vectors"), 1, columns, ("id",))
    copy.place.execute(f"CREATE TABLE {target_name(copy, schema)} (id int PRIMARY KEY, v bytea)")
    copy.sink.prepare(copy.job, [schema])
    rows = [(1, [0.5, -0.0, 1.0]), (2, None), (3, [])]
    copy.write(snapshot_part(1, 1, schema, rows), schemas={(schema.table, 1): schema})
    found = copy.place.query(f"SELECT id, encode(v, 'hex') FROM {target_name(copy, schema)} ORDER BY id")
    assert found == [(1, struct.pack("<3f", 0.5, -0.0, 1.0).hex()), (2, None), (3, "")]


def test_a_document_does_not_fit_into_a_uuid(request: pytest.FixtureRequest) -> None:
    copy = make_case("postgres", request)
    assert isinstance(copy.sink, MirrorSink)
    copy.sink = dataclasses.replace(copy.sink, source_kind="postgresql")
    columns = (Column("id", "integer", "int32", nullable=False), Column("d", "jsonb", "string", nullable=True))
    schema = TableSchema(TableId("shop", "documents"), 1, columns, ("id",))
    name = target_name(copy, schema)
    copy.place.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, d uuid)")
    with pytest.raises(SinkError, match="column d is uuid, which can't hold every jsonb"):
        copy.sink.prepare(copy.job, [schema])
    copy.place.execute(f"ALTER TABLE {name} ALTER d TYPE json USING NULL")
    copy.sink.prepare(copy.job, [schema])


def test_existing_key_that_compares_more_coarsely_is_refused(mirror: SinkCase) -> None:  # noqa: F811
    name = column(
        "sku",
        "varchar(20)",
        "string",
        key=True,
        collation="utf8mb4_0900_as_cs" if mirror.kind == "mysql" else "utf8mb4_bin",
    )
    schema = TableSchema(ORDERS.table, 1, (name,), ("sku",))
    if mirror.kind == "postgres":
        mirror.place.execute(
            "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            'CREATE TABLE shop_orders (sku text COLLATE "loose" PRIMARY KEY)',
        )
    else:
        mirror.place.execute("CREATE TABLE shop_orders (sku varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY)")
    (found,) = problems(mirror, schema)
    assert "treats texts as equal" in found.text


@pytest.mark.pitfall(24)
def test_tables_without_a_key_are_refused(mirror: SinkCase) -> None:  # noqa: F811
    (found,) = problems(mirror, dataclasses.replace(ORDERS, key=()))
    assert "has no key" in found.text
    assert "source.keys" in str(found.remedy)


@pytest.mark.pitfall(93)
def test_copies_under_the_names_of_tidemarks_own_tables_are_refused(mirror: SinkCase) -> None:  # noqa: F811
    for template in ("tidemark_{table}", "elsewhere.tidemark_{table}"):
        for name in ("ledger", "tables"):
            schema = dataclasses.replace(ORDERS, table=TableId("shop", name))
            (found,) = problems(routed(mirror, template), schema)
            assert "has the name of one of Tidemark's own tables" in found.text


@pytest.mark.pitfall(92)
def test_triggers_of_the_target_are_reported(mirror: SinkCase) -> None:  # noqa: F811
    create(mirror)
    name = target_name(mirror, ORDERS)
    expected = ["audit"]
    if mirror.kind == "postgres":
        expected = ["audit", "quiet"]
        mirror.place.execute(
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            f"CREATE TRIGGER audit BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION nothing()",
            f"CREATE TRIGGER disabled BEFORE INSERT ON {name} FOR EACH ROW EXECUTE FUNCTION nothing()",
            f"ALTER TABLE {name} DISABLE TRIGGER disabled",
            f"CREATE RULE quiet AS ON DELETE TO {name} DO INSTEAD NOTHING",
        )
    else:
        mirror.place.execute(f"CREATE TRIGGER audit BEFORE INSERT ON {name} FOR EACH ROW SET NEW.note = 'x'")
    found = mirror.sink.check([ORDERS], mirror.job)
    (reported,) = [finding for finding in found if "trigger" in finding.text]
    assert f"has triggers or rules ({', '.join(expected)})" in reported.text
    assert not reported.is_problem


def test_columns_that_the_target_takes_for_one_are_refused(mirror: SinkCase) -> None:  # noqa: F811
    schema = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, column("Note", "text", "string")))
    found = problems(mirror, schema)
    if mirror.kind == "postgres":
        assert not found
    else:
        assert [finding.text for finding in found] == [
            "The target takes the names of its columns note and Note for one."
        ]
        assert found[0].remedy == "Exclude it: source.columns: {shop.orders: {exclude: [Note]}}."


def test_rows_that_row_level_security_of_the_target_hides_stop_the_job(postgres_database: Database) -> None:
    with role(postgres_database, "CREATE, USAGE ON SCHEMA public", attributes="LOGIN") as login:
        sink = MirrorSink(login, TEMPLATE, None, "mysql")
        case = SinkCase("postgres", sink, postgres_database)
        sink.prepare(case.job, [ORDERS])
        case.write(snapshot_part(1, 1, ORDERS, [(1, "Ada", None, 0, None), (2, "Grace", None, 0, None)]))
        name = target_name(case, ORDERS)
        postgres_database.execute(
            f"ALTER TABLE {name} ENABLE ROW LEVEL SECURITY",
            f"ALTER TABLE {name} FORCE ROW LEVEL SECURITY",
            f"CREATE POLICY one ON {name} USING (id <> 2) WITH CHECK (true)",
        )
        with pytest.raises(SinkError, match="BYPASSRLS"):
            case.write(log_part(2, (ORDERS, [(DELETE, (2, "Grace", None, 0, None))])))
        postgres_database.execute(f"ALTER ROLE {login.user} BYPASSRLS")
        case.write(log_part(2, (ORDERS, [(DELETE, (2, "Grace", None, 0, None))])))
        assert [row[0] for row in case.rows(ORDERS)] == [1]


def test_tables_that_would_meet_and_names_that_are_too_long_are_refused(mirror: SinkCase) -> None:  # noqa: F811
    other = dataclasses.replace(ORDERS, table=TableId("crm", "orders"))
    found = problems(routed(mirror, "{table}"), ORDERS, other)
    assert [f.text for f in found] == ["crm.orders and shop.orders would be written into one table."]
    long_name = dataclasses.replace(ORDERS, table=TableId("shop", "ü" * 60))
    limits = {"postgres": "63 bytes", "mysql": "64 characters", "mariadb": "64 characters"}
    (found_long,) = problems(mirror, long_name)
    assert limits[mirror.kind] in found_long.text


def test_a_name_with_a_character_that_the_target_has_not_is_its_tables_trouble(mirror: SinkCase) -> None:  # noqa: F811
    """Names of MySQL and MariaDB have no characters of four bytes. Asked about such a table, MySQL names none."""
    odd = dataclasses.replace(ORDERS, table=TableId("shop", "cheap_😀"))
    found = problems(mirror, odd)
    if mirror.kind == "postgres":
        assert not found
    else:
        assert [finding.table for finding in found] == [odd.table]
        assert "no emoji" in found[0].text


@pytest.mark.once_per_family
def test_names_that_only_the_server_keeps_for_itself_are_their_tables_trouble(mirror: SinkCase) -> None:  # noqa: F811
    """They are found before anything is created: else a table that joins later would stop the job."""
    if mirror.kind == "postgres":
        odd = dataclasses.replace(ORDERS, table=TableId("pg_data", "orders"))
        (found,) = problems(routed(mirror, "{schema}.{table}"), ORDERS, odd)
        assert "keeps the name pg_data for itself" in found.text
    else:
        number = column("fts_doc_id", "bigint unsigned", "uint64")
        odd = TableSchema(TableId("shop", "texts"), 1, (ORDERS.columns[0], number), ("id",))
        (found,) = problems(mirror, ORDERS, odd)
        assert "column fts_doc_id: InnoDB keeps this name" in found.text
        keyed = dataclasses.replace(number, name="FTS_DOC_ID", nullable=False)
        fits = TableSchema(TableId("shop", "numbers"), 1, (keyed,), ("FTS_DOC_ID",))
        mirror.sink.prepare(mirror.job, [fits])
        with pytest.raises(pymysql.MySQLError, match="FTS_DOC_ID"):  # why the check is needed
            mirror.place.execute("CREATE TABLE texts (id int PRIMARY KEY, FTS_DOC_ID bigint unsigned NULL)")
    assert found.table == odd.table


def test_template_may_name_a_schema_which_is_created(mirror: SinkCase) -> None:  # noqa: F811
    target = f"copy_of_{mirror.place.name}"
    case = routed(mirror, f"{target}.{{table}}")
    try:
        assert any(f"schema {target} will be created" in f.text for f in case.sink.check([ORDERS], case.job))
        case.sink.prepare(case.job, [ORDERS])
        case.write(
            snapshot_part(1, 1, ORDERS, [(1, "Ada", None, 0, None)]),
            log_part(2, (ORDERS, [(INSERT, (2, "B", None, 0, None))])),
        )
        quote = '"' if mirror.kind == "postgres" else "`"
        assert mirror.place.query(f"SELECT count(*) FROM {quote}{target}{quote}.orders") == [(2,)]
    finally:
        if mirror.kind != "postgres":
            mirror.place.execute(f"DROP DATABASE IF EXISTS {target}")


def test_names_that_need_quoting(mirror: SinkCase) -> None:  # noqa: F811
    odd = TableSchema(
        TableId('sh"o`p', "order's %s {x}"),
        1,
        (column('i"d` %s', "int", "int32", key=True), column("select", "varchar(10)", "string")),
        ('i"d` %s',),
    )
    mirror.sink.prepare(mirror.job, [odd])
    mirror.write(snapshot_part(1, 1, odd, [(1, "a")]), schemas={(odd.table, 1): odd})
    mirror.write(log_part(2, (odd, [(INSERT, (2, "%"))])), schemas={(odd.table, 1): odd})
    assert mirror.rows(odd) == [(1, "a"), (2, "%")]


def test_a_copy_may_be_called_as_statements_call_its_new_rows(mirror: SinkCase) -> None:  # noqa: F811
    """PostgreSQL's ON CONFLICT knows them as `excluded`."""
    schema = dataclasses.replace(ORDERS, table=TableId("shop", "excluded"))
    case, schemas = routed(mirror, "{table}"), {(schema.table, 1): schema}
    case.sink.prepare(case.job, [schema])
    row = ("Ada", None, 0, None)
    case.write(
        snapshot_part(1, 1, schema, [(1, *row), (2, *row)]),
        log_part(2, (schema, [(UPDATE, (2, "B", None, 0, None)), (INSERT, (3, *row)), (DELETE, (1, *row))])),
        schemas=schemas,
    )
    assert case.place.query("SELECT id, customer FROM excluded ORDER BY id") == [(2, "B"), (3, "Ada")]


def test_column_that_is_not_captured_has_no_place_in_the_copy(mirror: SinkCase) -> None:  # noqa: F811
    hidden = dataclasses.replace(ORDERS.columns[4], captured=False, arrow_type="")
    schema = dataclasses.replace(ORDERS, columns=(*ORDERS.columns[:4], hidden))
    mirror.sink.prepare(mirror.job, [schema])
    mirror.write(snapshot_part(1, 1, schema, [(1, "Ada", None, 0)]), schemas={(schema.table, 1): schema})
    assert mirror.rows(schema) == [(1, "Ada", None, 0)]


def test_ledger_without_a_database_in_the_url(mysql_server: Any) -> None:
    sink = MirrorSink(parse_endpoint(mysql_server.url), parse_table_template("{schema}.{table}"), None, "mysql")
    case = SinkCase("mysql", sink, None)
    schema = dataclasses.replace(ORDERS, table=TableId("ledgerless", "orders"))
    try:
        sink.prepare(case.job, [schema])
        case.write(
            snapshot_part(1, 1, schema, [(1, "Ada", None, 0, None)]), schemas={**SCHEMAS, (schema.table, 1): schema}
        )
        with mysql_server.connect("ledgerless") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM orders")
            assert cursor.fetchone() == (1,)
    finally:
        with mysql_server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS ledgerless")
            cursor.execute(f"DROP DATABASE IF EXISTS {OWN_DATABASE}")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_an_account_with_the_documented_rights_suffices(kind: str, request: pytest.FixtureRequest) -> None:
    case = make_case(kind, request, source="postgresql")
    database, note = case.place, (1, "en", 0, "body", None, None)
    update = log_part(2, (NOTES, [(UPDATE, (1, "en", 1, UNCHANGED, None, None))]))
    rights = f"SELECT, INSERT, UPDATE, DELETE, CREATE ON {database.name}.*"
    with account(database.server, rights) as login:
        endpoint = dataclasses.replace(login, database=database.name)
        case.sink = MirrorSink(endpoint, TEMPLATE, None, "postgresql")
        case.sink.prepare(case.job, [NOTES])
        case.write(snapshot_part(1, 1, NOTES, [note]))
        with pytest.raises(SinkError, match="denied") as caught:
            case.write(update)
        assert "CREATE TEMPORARY TABLES" in str(caught.value.remedy)
        database.execute(f"GRANT CREATE TEMPORARY TABLES ON {database.name}.* TO {login.user}")
        case.write(update)
    assert case.rows(NOTES) == [(1, "en", 1, *note[3:])]


def test_missing_rights_in_postgres_are_found(request: pytest.FixtureRequest) -> None:
    case = make_case("postgres", request)
    role = f"reader_{case.place.name}"
    case.place.execute(f"CREATE ROLE {role} LOGIN", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        login = dataclasses.replace(parse_endpoint(case.place.url), user=role)
        found = [f for f in dataclasses.replace(case.sink, url=login).check([ORDERS]) if f.is_problem]  # type: ignore[type-var]
        assert "may not create tables" in found[0].text
        assert 'GRANT CREATE, USAGE ON SCHEMA "public"' in str(found[0].remedy)
    finally:
        case.place.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_key_of_unlimited_text_is_refused(kind: str, request: pytest.FixtureRequest) -> None:
    case = make_case(kind, request)
    columns = (column("name", "text", "string", key=True), column("v", "int", "int32"))
    (found,) = problems(case, TableSchema(ORDERS.table, 1, columns, ("name",)))
    assert "would need a prefix" in found.text
    assert "source.keys" in str(found.remedy)


def test_types_that_are_not_known_are_refused(mirror: SinkCase) -> None:  # noqa: F811
    odd = dataclasses.replace(ORDERS.columns[4], source_type="hologram(3)")
    schema = dataclasses.replace(ORDERS, columns=(*ORDERS.columns[:4], odd))
    (found,) = problems(mirror, schema)
    assert "hologram" in found.text
    assert "exclude: [note]" in str(found.remedy)


def test_names_that_differ_by_case_meet_where_the_target_ignores_it() -> None:
    with start_server("mysql", options={"lower_case_table_names": 1}) as server:
        sink = MirrorSink(parse_endpoint(server.url), parse_table_template("Copy.{table}"), None, "mysql")
        case = SinkCase("mysql", sink, None)
        shouted = dataclasses.replace(ORDERS, table=TableId("shop", "ORDERS"))
        assert any("would be written into one table" in f.text for f in problems(case, ORDERS, shouted))
        sink.prepare(case.job, [shouted])
        sink.prepare(case.job, [shouted])
        found = [f for f in sink.check([ORDERS], OTHER_JOB) if f.is_problem]
        assert any("belongs to job contract" in f.text for f in found)
