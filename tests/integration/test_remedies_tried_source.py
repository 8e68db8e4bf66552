"""Remedies for trouble with the source, done as they are printed: the job goes on, and its copy is that of the source."""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.leases import wait_until
from tests.support.lost_logs import lose_log
from tests.support.mysql_accounts import account
from tests.support.postgres_roles import role
from tests.support.remedies import commands_in, obey, remedy_of, run_command, run_through, what_is_told
from tests.support.remedy_ways import mirror_job
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.jobs.sources import acquire_lease
from tidemark.readers.lease import Lock, checkpoint_lock, lock_name
from tidemark.readers.mysql.lease import MySqlLock
from tidemark.readers.postgres.lease import AdvisoryLock
from tidemark.state.errors import JobHeldError, LogPositionLostError, SourceNotUsableError, TidemarkError
from tidemark.state.remedies import START_OVER

pytestmark = pytest.mark.integration

GRANT = re.compile(r"GRANT (?P<what>[A-Z_, ]+ ON [\w.*]+) TO (?:<account>|the account)")


def orders(source: Database) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")


def require_equal(source: Database, target: Database, *tables: str) -> None:
    for table in tables or ("orders",):
        query = "SELECT * FROM {} ORDER BY id"
        assert target.query(query.format(f"copy_{table}")) == source.query(query.format(table))


@pytest.fixture(params=["mysql", "mysql_nogtid", "mariadb"])
def granting(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(f"{request.param}_database")
    return database


def test_an_account_gets_the_grants_that_are_printed_one_after_the_other(
    granting: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """From none to enough."""
    orders(granting)
    with account(granting.server, f"SELECT ON {granting.name}.*") as endpoint:
        job = mirror_job(tmp_path, granting, postgres_database, url=endpoint.url_with_password())
        obey(
            job,
            SourceNotUsableError,
            lambda remedy: [match["what"] for match in GRANT.finditer(remedy)],
            lambda grants: granting.execute(*[f"GRANT {grant} TO {endpoint.user}" for grant in grants]),
        )
        granting.execute("INSERT INTO orders VALUES (2, 'b')")
        run_epochs(job)
        require_equal(granting, postgres_database)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_settings_of_the_log_are_set_as_it_is_printed(
    find_server: FindServer, postgres_database: Database, tmp_path: Path, kind: str
) -> None:
    options = {"binlog_format": "MIXED", "binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL"}
    if kind == "mysql":
        options["binlog_row_value_options"] = "PARTIAL_JSON"
    server = find_server(kind, **options)
    with fresh_database(server) as source:
        orders(source)
        job = mirror_job(tmp_path, source, postgres_database)
        statements = re.findall(r"SET GLOBAL \w+ = '\w*'", remedy_of(job, SourceNotUsableError))
        assert len(statements) == len(options)
        try:
            source.execute(*statements)
            run_epochs(job)
            source.execute("INSERT INTO orders VALUES (2, 'b')", "UPDATE orders SET note = 'z' WHERE id = 1")
            run_epochs(job)
        finally:  # other tests have this server, too
            source.execute(*[f"SET GLOBAL {name} = '{value}'" for name, value in options.items()])
        require_equal(source, postgres_database)


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_a_lease_of_a_process_that_is_gone_is_ended(
    request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path, kind: str
) -> None:
    """Its connection lives on, as behind a network that broke."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = request.getfixturevalue("mysql_database") if kind == "postgres" else postgres_database
    orders(source)
    job = mirror_job(tmp_path, source, target)
    run_epochs(job)
    with held_lease(job, source):
        with pytest.raises(JobHeldError) as caught:
            acquire_lease(load_job_file(job), wait=False)
        statement = re.search(r"KILL \d+|SELECT pg_terminate_backend\(\d+\)", caught.value.remedy)
        assert statement is not None, caught.value.remedy
        source.execute(statement[0])
        source.execute("INSERT INTO orders VALUES (2, 'b')")
        run_epochs(job)
    require_equal(source, target)


@contextlib.contextmanager
def held_lease(job: Path, source: Database) -> Iterator[None]:
    """By a connection that nobody watches."""
    file = load_job_file(job)
    names = checkpoint_lock(file.checkpoint), lock_name("slot", file.slot)
    lock: Lock = MySqlLock(file.source.url, None, names[0])
    if source.kind == "postgres":
        lock = AdvisoryLock(file.source.url, None, *names)
    wait_until(lambda: lock.try_to_take(1))
    try:
        yield
    finally:
        lock.drop()


ROLE = "the role of source.url"


def test_a_role_gets_the_rights_that_are_printed_one_after_the_other(
    postgres_source_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    """From none to enough."""
    source = postgres_source_database
    orders(source)
    source.execute('CREATE TABLE "Odd one" (id int PRIMARY KEY)', "REVOKE ALL ON SCHEMA public FROM public")
    statement = re.compile(
        r"GRANT [A-Z]+(?: \([^)]*\))? ON .+? TO (?:the role of source\.url|\S+?)(?=[.;)])"
        r"|ALTER ROLE \S+ REPLICATION|CREATE PUBLICATION .*?\)(?=[.])"
    )
    with role(source) as endpoint:
        job = mirror_job(tmp_path, source, mysql_database, url=endpoint.url_with_password(), tables=["public.orders"])
        obey(
            job,
            SourceNotUsableError,
            lambda remedy: [text.replace(ROLE, endpoint.user) for text in statement.findall(remedy)],
            lambda statements: source.execute(*statements),
        )
        source.execute("INSERT INTO orders VALUES (2, 'b')")
        run_epochs(job)
        require_equal(source, mysql_database)


def a_shop(source: Database) -> None:
    orders(source)
    source.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, parts int) PARTITION BY RANGE (id)",
        "CREATE TABLE notes_low PARTITION OF notes DEFAULT",
        "INSERT INTO notes VALUES (1, 1)",
    )


PUBLICATIONS = {
    "insert": "FOR TABLE orders, notes WITH (publish = 'insert', publish_via_partition_root = true)",
    "default": "FOR TABLE orders, notes",
    "filter": "FOR TABLE orders WHERE (id > 1), notes WITH (publish_via_partition_root = true)",
    "columns": "FOR TABLE orders (id), notes WITH (publish_via_partition_root = true)",
}


@pytest.mark.parametrize("kind", PUBLICATIONS)
def test_a_publication_is_altered_as_it_is_printed(
    postgres18_database: Database, mysql_database: Database, tmp_path: Path, kind: str
) -> None:
    source = postgres18_database
    a_shop(source)
    source.execute(f'CREATE PUBLICATION "{source.name}" {PUBLICATIONS[kind]}')
    job = mirror_job(tmp_path, source, mysql_database)
    remedy = remedy_of(job, SourceNotUsableError)
    statements = re.findall(r"(?:ALTER|DROP|CREATE) PUBLICATION .*?(?=[.;]? (?:[A-Z][a-z]|or )|[.;]?$)", remedy)
    assert statements, remedy
    source.execute(*statements)
    run_epochs(job)
    source.execute(
        "INSERT INTO orders VALUES (2, 'b')", "DELETE FROM orders WHERE id = 1", "UPDATE notes SET parts = 2"
    )
    run_epochs(job)
    require_equal(source, mysql_database, "orders", "notes")


def start_over(job: Path, source: Database, target: Database, tidemark: CommandLine | None) -> None:
    """Does what docs/changing-a-job.md says. Without a command line the slot stays."""
    if tidemark is not None and source.kind == "postgres":
        assert tidemark("drop", job, "--yes").code == 0
    shutil.rmtree(job.parent / "checkpoint")
    tables = [table.partition(".")[2] for (table,) in target.query("SELECT source_table FROM tidemark_tables")]
    target.execute(*[f"DROP TABLE IF EXISTS copy_{table}" for table in tables], "DELETE FROM tidemark_tables")


LOST: dict[str, tuple[str, Callable[[Database], object]]] = {
    "mysql: purged": ("mysql", lose_log),
    "mariadb: purged": ("mariadb", lose_log),
    "postgres: the slot is dropped": ("postgres", lose_log),
    "postgres: the slot was advanced": (
        "postgres",
        lambda source: source.query("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (source.name,)),
    ),
    "postgres: the slot was created again": (
        "postgres",
        lambda source: (
            lose_log(source),
            source.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (source.name,)),
        ),
    ),
}


@pytest.mark.parametrize(
    ("name", "drops"),
    [(name, drops) for name in LOST for drops in (True, False) if drops or LOST[name][0] == "postgres"],
)
def test_a_job_whose_log_is_lost_starts_over(
    request: pytest.FixtureRequest,
    postgres_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    name: str,
    drops: bool,
) -> None:
    kind, lose = LOST[name]
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = request.getfixturevalue("mysql_database") if kind == "postgres" else postgres_database
    orders(source)
    job, no_copies = mirror_job(tmp_path, source, target), "checkpoints.keep=0"  # of the slot, which have the log
    run_epochs(job, no_copies)
    source.execute("INSERT INTO orders VALUES (2, 'b')")
    lose(source)
    source.execute("DELETE FROM orders WHERE id = 1")
    assert START_OVER in remedy_of(job, LogPositionLostError, no_copies).lower()
    start_over(job, source, target, tidemark if drops else None)
    for _ in range(2):
        run_epochs(job)
        require_equal(source, target)
        source.execute("UPDATE orders SET note = 'z'")


@dataclass(frozen=True)
class Trouble:
    """`made`: what is done in the source. `says`: what the text then tells to do by hand, and `done`, statements of it; none if
    the command or setting of the text is all."""

    made: tuple[str, ...]
    says: str = ""
    done: tuple[str, ...] = ()


OF_MYSQL = {
    "a session logs changed columns only": Trouble(
        ("SET SESSION binlog_row_image = 'MINIMAL'", "UPDATE orders SET note = 'b'"),
        "SET GLOBAL binlog_row_image=FULL on the source",
    ),
    "a session logs a statement": Trouble(
        ("SET SESSION binlog_format = 'STATEMENT'", "UPDATE orders SET note = 'b'"), "binlog_format=ROW"
    ),
    "a key becomes another": Trouble(
        ("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, note)", "UPDATE orders SET note = 'b'")
    ),
    "a column is added": Trouble(("ALTER TABLE orders ADD extra int DEFAULT 3", "UPDATE orders SET extra = 4")),
    "the table is created again": Trouble(
        (
            "DROP TABLE orders",
            "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))",
            "INSERT INTO orders VALUES (7, 'c')",
        )
    ),
    "the table is renamed": Trouble(
        ("RENAME TABLE orders TO away",), "rename the table back", ("RENAME TABLE away TO orders",)
    ),
}
OF_POSTGRES = {
    "an identity without columns": Trouble(
        ("ALTER TABLE orders REPLICA IDENTITY NOTHING",),
        'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT',
        ('ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT',),
    ),
    "an identity without columns for a while": Trouble(
        (
            "ALTER TABLE orders REPLICA IDENTITY USING INDEX by_code",
            "UPDATE orders SET code = 4 WHERE id = 1",
            "UPDATE orders SET id = 9 WHERE id = 2",
        ),
        'ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT',
        ('ALTER TABLE "public"."orders" REPLICA IDENTITY DEFAULT',),
    ),
    "the table is renamed": Trouble(
        ("ALTER TABLE orders RENAME TO away", "UPDATE away SET note = 'b'"),
        "rename the table back",
        ("ALTER TABLE away RENAME TO orders",),
    ),
    "the table is created again": Trouble(
        (
            "DROP TABLE orders",
            "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90), code int NOT NULL)",
            "INSERT INTO orders VALUES (7, 'c', 7)",
        )
    ),
    "the table leaves the publication for a while": Trouble(
        (
            'ALTER PUBLICATION "{name}" DROP TABLE orders',
            "UPDATE orders SET note = 'b'",
            'ALTER PUBLICATION "{name}" ADD TABLE orders',
        )
    ),
    "the publication is created again": Trouble(
        ('DROP PUBLICATION "{name}"', "UPDATE orders SET note = 'b'", 'CREATE PUBLICATION "{name}" FOR ALL TABLES')
    ),
    "all rows are rewritten": Trouble(
        ("ALTER TABLE orders ALTER code TYPE bigint USING code + 1", "UPDATE orders SET note = 'b'")
    ),
}


@pytest.mark.parametrize("policy", ["park", "stop"])
@pytest.mark.parametrize("name", OF_MYSQL)
def test_a_table_of_mysql(
    mysql_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str, policy: str
) -> None:
    mysql_database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90) NOT NULL)",
        "INSERT INTO orders VALUES (1, 'a'), (2, 'a')",
        "CREATE TABLE others (id int PRIMARY KEY)",
    )
    job = mirror_job(
        tmp_path, mysql_database, postgres_database, on_table_error=policy, tables=[f"{mysql_database.name}.o*"]
    )
    check(job, mysql_database, postgres_database, OF_MYSQL[name], tidemark)


def check(job: Path, source: Database, target: Database, trouble: Trouble, tidemark: CommandLine) -> None:
    run_epochs(job)
    with contextlib.closing(source.connect()) as connection, connection.cursor() as cursor:
        for statement in trouble.made:
            cursor.execute(statement.format(name=source.name))
        connection.commit()
    source.execute("INSERT INTO others VALUES (1)")
    told: list[str] = []
    while (advice := what_is_told(job)) is not None:
        assert advice not in told, advice
        told.append(advice)
        source.execute(*(trouble.done if len(told) == 1 else ()))
        if commands_in(advice):
            run_command(advice, job, tidemark)
    assert told
    assert trouble.says in told[0]
    for _ in range(2):
        run_through(job)
        require_equal(source, target, "orders", "others")
        source.execute("UPDATE orders SET note = 'z' WHERE id IN (1, 7)", "DELETE FROM orders WHERE id = 2")


@pytest.mark.parametrize("policy", ["park", "stop"])
@pytest.mark.parametrize("name", OF_POSTGRES)
def test_a_table_of_postgresql(
    postgres18_database: Database,
    mysql_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    name: str,
    policy: str,
) -> None:
    source = postgres18_database
    source.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note varchar(90), code int NOT NULL)",
        "CREATE UNIQUE INDEX by_code ON orders (code)",
        "INSERT INTO orders VALUES (1, 'a', 1), (2, 'a', 2)",
        "CREATE TABLE others (id int PRIMARY KEY)",
    )
    job = mirror_job(tmp_path, source, mysql_database, on_table_error=policy, tables=["public.o*"])
    check(job, source, mysql_database, OF_POSTGRES[name], tidemark)


@pytest.mark.parametrize(
    ("kind", "start", "instead"),
    [
        ("mysql", "{file: binlog.999999, pos: 4}", "earliest"),
        ("mysql", "{timestamp: '2199-01-01T00:00:00Z'}", "latest"),
        ("mariadb", "{gtid: '9-9-9'}", None),
        ("postgres", "{lsn: FFFF/0}", r"an LSN from (\w+/\w+)"),
    ],
)
def test_a_start_in_the_log_is_corrected(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, start: str, instead: str | None
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    orders(source)
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl"}
    job = write_job(tmp_path, source=source_of(source), sink=sink, mode="incremental")
    remedy = remedy_of(job, TidemarkError, f"log.start={start}")
    if instead is None:  # the server's log may have been purged by another test
        assert "@@gtid_binlog_pos" in remedy or "Give a later start" in remedy
        ((position,),) = source.query("SELECT @@gtid_binlog_pos")
        corrected = f"{{gtid: '{position}'}}"
    else:
        found = re.search(instead, remedy)
        assert found is not None, remedy
        corrected = f"{{lsn: {found[1]}}}" if found.groups() else instead
    run_epochs(job, f"log.start={corrected}")
    source.execute("INSERT INTO orders VALUES (77, 'new')")
    run_epochs(job, f"log.start={corrected}")
    assert "77" in "".join(path.read_text() for path in (tmp_path / "out").rglob("*.jsonl"))
