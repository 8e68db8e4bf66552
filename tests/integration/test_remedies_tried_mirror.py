"""Remedies for trouble with the copies of a mirror and with its server, done as they are printed: the job goes on, and the
copies are those of the source.

A server that is full, or short of locks, is a trigger that raises what the server would."""

import contextlib
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from devtools.server import Server
from tests.support.cli import CommandLine
from tests.support.copy_troubles import CREATE, WRITE, CopyTrouble, get_over_copy
from tests.support.postgres_roles import role
from tests.support.remedies import run_command
from tests.support.remedy_ways import by_hand, left_out, mirror_job, require_copies, setting, told_by, told_of
from tests.support.servers import Database, fresh_database
from tidemark.conf import reconnect
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.redaction import Secret
from tidemark.sinks.mirror import writer as mirror_writer

pytestmark = pytest.mark.integration

LONG = "".join(hashlib.sha256(bytes([number])).hexdigest() for number in range(100))[:2990]
"""Not to be compressed to a third."""
LONG_NAME = "t" * 64
OF_17 = ", ".join(f"c{number}" for number in range(17))
FIT = "Drop that table and let the job create it, or change it so that it fits."
OWN = "Correct what the copy has besides the source's columns"
EMPTY = "Empty or drop that table, or choose another name by sink.table."
GONE = "Start the job again: it says which table it lacks."
ROWS = ("CREATE TABLE copy_orders (id int PRIMARY KEY, note text)", "INSERT INTO copy_orders VALUES (7, 'x')")


SET_BACK = "Put back the newest state of the target, whole and with Tidemark's own tables or files"


def skipping(table: str, event: str = "INSERT", when: str = "") -> tuple[str, ...]:
    return (
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        f"CREATE TRIGGER skips BEFORE {event} ON {table} FOR EACH ROW {when} EXECUTE FUNCTION skip()",
    )


def raising(code: str) -> tuple[str, ...]:
    return (
        f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE SQLSTATE ''{code}''; END'",
        "CREATE TRIGGER raises BEFORE INSERT ON copy_orders FOR EACH ROW EXECUTE FUNCTION no()",
    )


TO_POSTGRES = {
    "a name of Tidemark's tables": CopyTrouble(
        "Choose another name by sink.table.",
        source=("CREATE TABLE tables (id int PRIMARY KEY)", "INSERT INTO tables VALUES (1)"),
        sink={"table": "tidemark_{table}"},
        does=by_hand(settings=('sink.table="copy_{table}"',)),
        later=("INSERT INTO tables VALUES (9)",),
    ),
    "a name of the server's schemas": CopyTrouble(
        "Choose another name by sink.table.",
        sink={"table": "pg_copy.{table}"},
        does=by_hand(settings=('sink.table="copy_{table}"',)),
    ),
    "a long name": CopyTrouble(
        "Choose another name by sink.rename.",
        source=(f"CREATE TABLE {LONG_NAME} (id int PRIMARY KEY)", f"INSERT INTO {LONG_NAME} VALUES (1)"),
        does=by_hand(settings=(f"sink.rename=[{{match: copy_{LONG_NAME}, to: short}}]",)),
        later=(f"INSERT INTO {LONG_NAME} VALUES (9)",),
    ),
    "a long schema": CopyTrouble(
        "Choose another schema by sink.table.",
        sink={"table": f"{LONG_NAME}.{{table}}"},
        does=by_hand(settings=('sink.table="copies.{table}"',)),
        done=("CREATE SCHEMA copies",),
        compared="",
    ),
    "a long name of a column": CopyTrouble(
        "Exclude it: ",
        source=(f"CREATE TABLE orders (id int PRIMARY KEY, note text, {LONG_NAME} int)",),
        does=setting,
        later=("INSERT INTO orders (id) VALUES (9)",),
        compared="id, note",
    ),
    "a column of a policy": CopyTrouble(
        "Name one of: ",
        wrong=("sink.on_bad_value_in={SCHEMA.orders: {notes: text}}",),
        does=by_hand(settings=("sink.on_bad_value_in={SCHEMA.orders: {note: text}}",)),
    ),
    "rows of somebody": CopyTrouble(EMPTY, target=ROWS, done=("DELETE FROM copy_orders",)),
    "rows in a table that is dropped": CopyTrouble(EMPTY, target=ROWS, done=("DROP TABLE copy_orders",)),
    "rows in a table that is left": CopyTrouble(
        EMPTY, target=ROWS, does=by_hand(settings=('sink.table="another_{table}"',))
    ),
    "a table that does not fit": CopyTrouble(
        FIT,
        target=("CREATE TABLE copy_orders (id int PRIMARY KEY, note varchar(9))",),
        done=("ALTER TABLE copy_orders ALTER note TYPE text",),
    ),
    "a table without a key": CopyTrouble(
        FIT, target=("CREATE TABLE copy_orders (id int, note text)",), done=("DROP TABLE copy_orders",)
    ),
    "a name of PostgreSQL's columns": CopyTrouble(
        "Exclude it: ",
        source=("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90), xmin int)",),
        does=setting,
        later=("INSERT INTO orders VALUES (9, 'n', 2)",),
        compared="id, note",
    ),
    "a name of PostgreSQL's columns, later": CopyTrouble(
        "Exclude it: ",
        sink={"on_schema_change": "evolve"},
        made=(),
        written=("ALTER TABLE orders ADD xmin int DEFAULT 5",),
        does=setting,
        later=("INSERT INTO orders VALUES (9, 'n', 2)",),
        compared="id, note",
    ),
    "a long name of a column, later": CopyTrouble(
        "Exclude it: ",
        sink={"on_schema_change": "evolve"},
        made=(),
        written=(f"ALTER TABLE orders ADD {LONG_NAME} int",),
        does=setting,
        later=("INSERT INTO orders (id) VALUES (9)",),
        compared="id, note",
    ),
    "a name of PostgreSQL's columns in the key": CopyTrouble(
        "Name another unique key (source.keys",
        source=("CREATE TABLE orders (xmin int NOT NULL UNIQUE, id int NOT NULL UNIQUE)",),
        wrong=("source.keys={SCHEMA.orders: [xmin]}",),
        does=by_hand(
            settings=("source.keys={SCHEMA.orders: [id]}", "source.columns={SCHEMA.orders: {exclude: [xmin]}}")
        ),
        later=("INSERT INTO orders VALUES (9, 9)",),
        compared="id",
    ),
    "a name of the changes' columns": CopyTrouble(
        "Exclude it: ",
        source=("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90), _change_type int)",),
        does=setting,
        later=("INSERT INTO orders VALUES (9, 'n', 2)",),
        compared="id, note",
    ),
    "a unique index where deleted rows are kept": CopyTrouble(
        "Drop that from the copy",
        target=("CREATE TABLE copy_orders (id int PRIMARY KEY, note text UNIQUE, gone boolean)",),
        sink={"audit_columns": {"deleted": "gone"}},
        done=("ALTER TABLE copy_orders DROP CONSTRAINT copy_orders_note_key",),
        compared="id, note",
    ),
    "a unique index where deleted rows were to be kept": CopyTrouble(
        "or start the job without sink.audit_columns.deleted.",
        target=("CREATE TABLE copy_orders (id int PRIMARY KEY, note text UNIQUE)",),
        wrong=("sink.audit_columns={deleted: gone}",),
        later=("INSERT INTO orders VALUES (9, 'n')",),
    ),
    "a type of the table's name": CopyTrouble(
        "A type of the target has that name.",
        target=("CREATE TYPE copy_orders AS ENUM ('x')",),
        does=by_hand(settings=("sink.rename=[{match: copy_orders, to: another}]",)),
    ),
    "a value too long for an index": CopyTrouble(
        "drop the index",
        source=("CREATE TABLE orders (id int PRIMARY KEY, note text)",),
        made=("CREATE INDEX notes ON copy_orders (note)",),
        written=(f"INSERT INTO orders VALUES (2, '{LONG}')",),
        done=("DROP INDEX notes",),
    ),
    "a value too long for the key": CopyTrouble(
        "leave the table out",
        source=(
            "CREATE TABLE orders (id varchar(3000) CHARACTER SET latin1 PRIMARY KEY)",
            f"INSERT INTO orders VALUES ('{LONG}')",
            "CREATE TABLE others (id int PRIMARY KEY)",
        ),
        does=by_hand(settings=("source.exclude_tables=[SCHEMA.orders]",)),
        later=("INSERT INTO others VALUES (9)",),
        left="orders",
    ),
    "a generated column that is too narrow": CopyTrouble(
        OWN,
        made=("ALTER TABLE copy_orders ADD twice smallint GENERATED ALWAYS AS (id * 10000) STORED",),
        written=("INSERT INTO orders VALUES (4, 'c')",),
        done=("ALTER TABLE copy_orders ALTER twice TYPE bigint",),
        compared="id, note",
    ),
    "a generated column that must have a value": CopyTrouble(
        OWN,
        made=("ALTER TABLE copy_orders ADD l int GENERATED ALWAYS AS (length(note)) STORED NOT NULL",),
        written=("INSERT INTO orders VALUES (4, NULL)",),
        done=("DROP TABLE copy_orders",),
        compared="id, note",
    ),
    "a trigger that uses a missing table": CopyTrouble(
        GONE,
        made=(
            "CREATE FUNCTION logs() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO gone VALUES (1); RETURN NEW; END'",
            "CREATE TRIGGER logs BEFORE INSERT ON copy_orders FOR EACH ROW EXECUTE FUNCTION logs()",
        ),
        done=("DROP TRIGGER logs ON copy_orders",),
    ),
    "a trigger of the ledger": CopyTrouble(
        "Check that table for triggers and changed rows.",
        made=skipping("tidemark_ledger"),
        done=("DROP TRIGGER skips ON tidemark_ledger",),
    ),
    "a trigger of the list of tables": CopyTrouble(
        "Check that table for triggers, and that the server keeps what is committed",
        made=skipping("tidemark_tables"),
        written=("CREATE TABLE others (id int PRIMARY KEY)",),
        done=("DROP TRIGGER skips ON tidemark_tables",),
    ),
    "a trigger of the fence": CopyTrouble(
        "Check that table for triggers.",
        made=skipping("tidemark_fence", "UPDATE", "WHEN (NEW.name = 'log')"),
        done=("DROP TRIGGER skips ON tidemark_fence",),
    ),
    "a view": CopyTrouble(
        "Drop these views, let the job read the table again, and create them again.",
        source=("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, '1')"),
        sink={"on_schema_change": "evolve"},
        made=("CREATE VIEW v AS SELECT * FROM copy_orders",),
        written=("ALTER TABLE orders MODIFY note int",),
        done=("DROP VIEW v",),
        later=("INSERT INTO orders VALUES (9, 4)",),
        then=("CREATE VIEW v AS SELECT * FROM copy_orders",),
    ),
    "no schema": CopyTrouble(
        "Create one",
        target=("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = copies'; END $$",),
        done=("CREATE SCHEMA copies",),
    ),
    "no schema that exists": CopyTrouble(
        "or let the role's search_path have one that exists",
        target=("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = copies'; END $$",),
        done=("DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() || ' SET search_path = public'; END $$",),
    ),
    "a server that is busy": CopyTrouble(
        "Start the job again when the target's server is available. Nothing is lost or repeated.",
        made=raising("40001"),
        done=("DROP TRIGGER raises ON copy_orders",),
    ),
    "a full disk": CopyTrouble(
        "Give the target's server more space or memory, then start the job again.",
        made=raising("53100"),
        done=("DROP TRIGGER raises ON copy_orders",),
    ),
    "a ledger that is put back": CopyTrouble(
        SET_BACK,
        made=("ALTER TABLE tidemark_ledger RENAME TO kept",),
        done=("DROP TABLE tidemark_ledger", "ALTER TABLE kept RENAME TO tidemark_ledger"),
    ),
    "a ledger that is gone, and all is read again": CopyTrouble(
        "Or set source.on_log_lost: resnapshot, and run the job again: it reads all rows.",
        made=("DROP TABLE tidemark_ledger",),
        does=by_hand(settings=("source.on_log_lost=resnapshot",)),
    ),
    "a ledger that is gone": CopyTrouble(SET_BACK, made=("DROP TABLE tidemark_ledger",)),
    "a full table of locks": CopyTrouble(
        "Raise max_locks_per_transaction on the target's server",
        made=raising("53200"),
        done=("DROP TRIGGER raises ON copy_orders",),
    ),
}
TO_BOTH = {
    "a list of tables that is put back": CopyTrouble(
        "or put the whole target back with Tidemark's own tables or files",
        made=("ALTER TABLE tidemark_tables RENAME TO kept",),
        done=("ALTER TABLE kept RENAME TO tidemark_tables",),
    ),
    "another place that was named": CopyTrouble(
        "Undo the change of sink.url",
        made=("ALTER TABLE tidemark_tables RENAME TO kept", "ALTER TABLE copy_orders RENAME TO kept_orders"),
        done=("ALTER TABLE kept RENAME TO tidemark_tables", "ALTER TABLE kept_orders RENAME TO copy_orders"),
    ),
}
TO_MYSQL = {
    "names that are one": CopyTrouble(
        "Exclude it: ",
        source=('CREATE TABLE orders (id int PRIMARY KEY, note text, "Note" text)', "INSERT INTO orders VALUES (1)"),
        does=setting,
        compared="id, note",
    ),
    "names that are one in the key": CopyTrouble(
        "Exclude it: ",
        source=(
            'CREATE TABLE orders ("ID" text, note text, id int PRIMARY KEY)',
            "INSERT INTO orders VALUES ('a', 'b', 1)",
        ),
        does=setting,
        compared="id, note",
        later=("INSERT INTO orders VALUES ('n', 'm', 9)",),
    ),
    "names that are one, later": CopyTrouble(
        "Exclude it: ",
        sink={"on_schema_change": "evolve"},
        made=(),
        written=('ALTER TABLE orders ADD "ID" int',),
        does=setting,
        compared="id, note",
    ),
    "a name of InnoDB's columns": CopyTrouble(
        "Exclude it: ",
        source=("CREATE TABLE orders (id int PRIMARY KEY, note text, db_trx_id int)",),
        does=setting,
        later=("INSERT INTO orders VALUES (9, 'n', 2)",),
        compared="id, note",
    ),
    "a name of InnoDB's columns, later": CopyTrouble(
        "Exclude it: ",
        sink={"on_schema_change": "evolve"},
        made=(),
        written=("ALTER TABLE orders ADD db_row_id int DEFAULT 5",),
        does=setting,
        later=("INSERT INTO orders VALUES (9, 'n', 2)",),
        compared="id, note",
    ),
    "a key of many columns": CopyTrouble(
        "Name another unique key (source.keys",
        source=(
            f"CREATE TABLE orders ({OF_17.replace(',', ' int NOT NULL,')} int NOT NULL, id int NOT NULL UNIQUE)",
            f"ALTER TABLE orders ADD UNIQUE ({OF_17})",
            "ALTER TABLE orders REPLICA IDENTITY FULL",
        ),
        wrong=(f"source.keys={{SCHEMA.orders: [{OF_17}]}}",),
        does=by_hand(settings=("source.keys={SCHEMA.orders: [id]}",)),
        later=(f"INSERT INTO orders VALUES ({OF_17.replace('c', '')}, 1)",),
    ),
    "a key of long texts": CopyTrouble(
        "or leave the table out: source.exclude_tables.",
        source=("CREATE TABLE orders (note text PRIMARY KEY)", "CREATE TABLE others (id int PRIMARY KEY)"),
        does=left_out,
        later=("INSERT INTO others VALUES (1)",),
        left="orders",
    ),
    "a table that gets rows only, and an update": CopyTrouble(
        "Give it a primary key",
        source=("CREATE TABLE orders (id int, note text)", "ALTER TABLE orders REPLICA IDENTITY FULL"),
        sink={"keyless": "append"},
        made=(),
        written=(
            "INSERT INTO orders VALUES (1, 'a')",
            "UPDATE orders SET id = 7",
            "ALTER TABLE orders ADD PRIMARY KEY (id)",
        ),
    ),
    "a key that is too long": CopyTrouble(
        "Or create its copy yourself with a shorter key that holds the same values.",
        source=(
            "CREATE TABLE orders (a varchar(400), b varchar(400), note text, PRIMARY KEY (a, b))",
            "INSERT INTO orders VALUES ('1', 'a', 'b')",
        ),
        done=(
            "CREATE TABLE copy_orders (a varchar(400) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin, "
            "b varchar(400) CHARACTER SET utf8mb3 COLLATE utf8mb3_bin, note longtext, PRIMARY KEY (a, b))",
        ),
        later=("INSERT INTO orders VALUES ('9', 'n', 'n')",),
    ),
    "a row that is too wide": CopyTrouble(
        "Exclude columns (source.columns)",
        source=(
            f"CREATE TABLE orders (id int PRIMARY KEY, note text, {', '.join(f'c{n} numeric(65, 30)' for n in range(300))})",
        ),
        does=by_hand(
            settings=(f"source.columns={{SCHEMA.orders: {{exclude: [{', '.join(f'c{n}' for n in range(300))}]}}}}",)
        ),
        compared="id, note",
        later=("INSERT INTO orders (id) VALUES (1)",),
    ),
    "more decimals than MySQL has": CopyTrouble(
        "MySQL has at most 30 decimals",
        source=("CREATE TABLE orders (id int PRIMARY KEY, note numeric(38, 35))", "INSERT INTO orders VALUES (1, 1)"),
        does=by_hand(settings=("source.columns={SCHEMA.orders: {exclude: [note]}}",)),
        compared="id",
        later=("INSERT INTO orders VALUES (9, 1)",),
    ),
    "a generated column that must have a value": CopyTrouble(
        "Or drop that table, and let the job create it.",
        made=("ALTER TABLE copy_orders ADD l int GENERATED ALWAYS AS (length(note)) STORED NOT NULL",),
        written=("INSERT INTO orders VALUES (4, NULL)",),
        done=("DROP TABLE copy_orders",),
        compared="id, note",
    ),
    "a generated column that is too short": CopyTrouble(
        OWN,
        made=("ALTER TABLE copy_orders ADD l varchar(2) GENERATED ALWAYS AS (note) STORED",),
        written=("INSERT INTO orders VALUES (4, 'abc')",),
        done=("ALTER TABLE copy_orders DROP l",),
        compared="id, note",
    ),
    "a trigger that uses a missing table": CopyTrouble(
        GONE,
        made=("CREATE TRIGGER logs BEFORE INSERT ON copy_orders FOR EACH ROW INSERT INTO gone VALUES (1)",),
        done=("DROP TRIGGER logs",),
    ),
    "a server that accepts no writes": CopyTrouble(
        "Name a server in sink.url that accepts writes",
        made=("SET GLOBAL super_read_only = 1",),
        done=("SET GLOBAL super_read_only = 0", "SET GLOBAL read_only = 0"),
    ),
    "a server that is busy": CopyTrouble(
        "Start the job again when the target's server is available. Nothing is lost or repeated.",
        made=(
            "CREATE TRIGGER waits BEFORE INSERT ON copy_orders FOR EACH ROW SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213",
        ),
        done=("DROP TRIGGER waits",),
    ),
    "a full disk": CopyTrouble(
        "Give the target's server more space, then start the job again.",
        made=(
            "CREATE TRIGGER full BEFORE INSERT ON copy_orders FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1114",
        ),
        done=("DROP TRIGGER full",),
    ),
}


WIDE = tuple(f"c{number}" for number in range(40))
FROM_MARIADB_TO_MYSQL = {
    "texts that are too wide together": CopyTrouble(
        "or create the table yourself with types that hold the same values.",
        source=(
            "SET innodb_strict_mode = OFF",
            f"CREATE TABLE orders (id int PRIMARY KEY, {', '.join(f'{name} char(255)' for name in WIDE)}) CHARSET latin1",
        ),
        done=(f"CREATE TABLE copy_orders (id int PRIMARY KEY, {', '.join(f'{name} longtext' for name in WIDE)})",),
        later=("INSERT INTO orders (id, c1) VALUES (1, 'a')",),
    ),
    "a column that takes no zero date": CopyTrouble(
        "Let that column of the target be NULL.",
        source=(
            "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90), day date NOT NULL)",
            "INSERT INTO orders VALUES (1, 'a', '2024-01-01')",
        ),
        sink={"on_bad_value": "null"},
        made=("ALTER TABLE copy_orders MODIFY day date NOT NULL",),
        written=("SET sql_mode = ''", "INSERT INTO orders VALUES (2, 'b', 0)"),
        done=("ALTER TABLE copy_orders MODIFY day date NULL",),
        later=("INSERT INTO orders VALUES (3, 'c', '2024-01-01')",),
        compared="id, note",
    ),
    "labels that are one, left out": CopyTrouble(
        "Exclude that column (source.columns)",
        source=(
            "SET sql_mode = ''",
            "CREATE TABLE orders (id int PRIMARY KEY, note ENUM('a', 'á') COLLATE utf8mb4_general_ci)",
        ),
        does=by_hand(settings=("source.columns={SCHEMA.orders: {exclude: [note]}}",)),
        later=("INSERT INTO orders VALUES (1, 'a')",),
        compared="id",
    ),
    "labels that are one, as text": CopyTrouble(
        "or create the copy yourself with VARCHAR in its place.",
        source=(
            "SET sql_mode = ''",
            "CREATE TABLE orders (id int PRIMARY KEY, note ENUM('a', 'á') COLLATE utf8mb4_general_ci)",
        ),
        done=("CREATE TABLE copy_orders (id int PRIMARY KEY, note varchar(9) COLLATE utf8mb4_bin)",),
        later=("INSERT INTO orders VALUES (1, 'a')",),
    ),
}


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_writer, "FIRST_DELAY_SECONDS", 0.001)


@pytest.mark.usefixtures("no_delay")
@pytest.mark.parametrize("name", [*TO_POSTGRES, *TO_BOTH])
def test_a_mirror_in_postgresql(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    get_over_copy(tmp_path, mysql_database, postgres_database, (TO_POSTGRES | TO_BOTH)[name], tidemark)


@pytest.mark.usefixtures("no_delay")
@pytest.mark.parametrize("name", [*TO_MYSQL, *TO_BOTH])
def test_a_mirror_in_mysql(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    get_over_copy(tmp_path, postgres_database, mysql_database, (TO_MYSQL | TO_BOTH)[name], tidemark)


@pytest.mark.parametrize("name", FROM_MARIADB_TO_MYSQL)
def test_a_mirror_of_mariadb_in_mysql(
    mariadb_database: Database, mysql_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    get_over_copy(tmp_path, mariadb_database, mysql_database, FROM_MARIADB_TO_MYSQL[name], tidemark)


@pytest.mark.parametrize("kind", ["mysql", "postgres"])
def test_what_leads_to_the_target_is_corrected(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_DELAY_SECONDS", 0.001)
    target = request.getfixturevalue(f"{kind}_database")
    source = request.getfixturevalue("postgres_database" if kind == "mysql" else "mysql_database")
    source.execute(*CREATE)
    job = mirror_job(tmp_path, source, target)
    known = parse_endpoint(target.url)
    wrong = {
        "Check user and password in sink.url": replace(known, user="nobody", password=Secret("wrong")),
        "Check that the target's server runs and accepts writes": replace(known, port=1),
    }
    if kind == "postgres":  # in MySQL the job creates it
        wrong["Create that database, or correct sink.url."] = replace(known, database="nowhere")
    for says, url in wrong.items():
        told_of(job, says, f"sink.url={url.url_with_password()}")
    assert told_by(job) is None
    source.execute(WRITE)
    assert told_by(job) is None
    require_copies(source, target)


def test_a_target_that_accepts_encrypted_connections_only(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source, target = postgres_database, mysql_database
    source.execute(*CREATE)
    job = mirror_job(tmp_path, source, target)
    assert told_by(job) is None
    source.execute(WRITE)
    with contextlib.closing(target.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL require_secure_transport = ON")
        try:
            told_of(job, "add sink.tls")
            assert told_by(job, "sink.tls={verify: false}") is None
        finally:
            cursor.execute("SET GLOBAL require_secure_transport = OFF")
    require_copies(source, target)


@pytest.mark.parametrize("way", ["added", "owned"])
def test_an_enum_of_another_role_gets_its_labels(
    postgres_database: Database, postgres_server: Server, tidemark: CommandLine, tmp_path: Path, way: str
) -> None:
    source = postgres_database
    source.execute("CREATE TYPE size AS ENUM ('s', 'm')", "CREATE TABLE orders (id int PRIMARY KEY, size size)")
    with fresh_database(postgres_server) as target, role(target, "CREATE, USAGE ON SCHEMA public") as login:
        target.execute(
            "CREATE TYPE size AS ENUM ('s', 'm')", "CREATE TABLE copy_orders (id int PRIMARY KEY, size size)"
        )
        target.execute(f"GRANT ALL ON copy_orders TO {login.user}")
        job = mirror_job(tmp_path, source, target, sink={"url": login.url_with_password()})
        assert told_by(job) is None
        source.execute("ALTER TYPE size ADD VALUE 'l'", "INSERT INTO orders VALUES (1, 'l')")
        told = told_of(job, "or let the role of sink.url own the type")
        if way == "added":
            target.execute("ALTER TYPE size ADD VALUE 'l'")
        else:
            target.execute(f"ALTER TYPE size OWNER TO {login.user}", f"ALTER TABLE copy_orders OWNER TO {login.user}")
        run_command(told, job, tidemark)
        assert told_by(job) is None
        source.execute("INSERT INTO orders VALUES (2, 's')")
        assert told_by(job) is None
        require_copies(source, target)


def test_long_texts_fit_where_a_character_has_more_bytes(
    mariadb_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """MySQL lacks the collation, and gets UTF-8 in place of Latin-1."""
    text = "varchar({}) CHARACTER SET latin1 COLLATE latin1_swedish_nopad_ci"
    mariadb_database.execute(
        f"CREATE TABLE orders (id int PRIMARY KEY, a {text.format(20000)}, b {text.format(20000)}, c {text.format(90)})",
        "INSERT INTO orders VALUES (1, repeat('é', 20000), repeat('é', 20000), 'é')",
    )
    assert told_by(mirror_job(tmp_path, mariadb_database, mysql_database)) is None
    require_copies(mariadb_database, mysql_database)


def test_a_table_of_the_name_of_another_ones_copy(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    source, target = postgres_database, mysql_database
    for schema in "ab":
        source.execute(f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.orders (id int PRIMARY KEY)")
    job = mirror_job(tmp_path, source, target, tables=["a.orders"])
    assert told_by(job) is None
    both = "source.tables=[a.orders, b.orders]"
    told_of(job, "or leave one of them out.", both)
    assert told_by(job, both, "source.exclude_tables=[b.orders]") is None
    told_of(job, "Leave it out: source.exclude_tables.", both, "source.exclude_tables=[a.orders]")
    assert told_by(job, both, "source.exclude_tables=[b.orders]") is None
    (tmp_path / "other").mkdir()
    slot = f"{source.name}_b"
    names = {"tables": ["b.orders"], "slot": slot, "publication": slot}
    other = mirror_job(tmp_path / "other", source, target, sink={"table": "{schema}_{table}"}, **names)
    assert told_by(other) is None
    source.execute("INSERT INTO a.orders VALUES (1)", "INSERT INTO b.orders VALUES (2)")
    assert told_by(job) is None
    assert told_by(other) is None
    require_copies(source, target)
