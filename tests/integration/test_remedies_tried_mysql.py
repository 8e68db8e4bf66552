"""Remedies for what a MySQL or MariaDB source is refused or warned for at a job's start, done as they are printed: the job goes
on, and its copies are those of the source."""

import contextlib
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from devtools.servers import start_server
from tests.support.cli import CommandLine
from tests.support.epochs import before_the_next_epoch, run_epochs
from tests.support.mysql_accounts import account
from tests.support.remedies import remedy_of
from tests.support.remedy_ways import (
    Trouble,
    Way,
    by_hand,
    get_over,
    left_out,
    mirror_job,
    require_copies,
    setting,
    statements,
    told_by,
    undone,
    written,
)
from tests.support.rewriting import Rewrite, closing_at, doing_at, replacing, rewriting
from tests.support.servers import Database, fresh_database
from tidemark.conf import reconnect
from tidemark.jobs import startup
from tidemark.readers import session
from tidemark.readers.mysql import connect
from tidemark.readers.mysql.binlog import connection
from tidemark.readers.mysql.snapshot import watermark, xa_commits
from tidemark.readers.snapshot import split_reader
from tidemark.state.errors import SourceNotUsableError

pytestmark = pytest.mark.integration
NEW_PASSWORD = "n3w-Passw0rd"
"""No word: it is masked in all that this process prints."""


def a_job(folder: Path, source: Database, target: Database) -> Path:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")
    return mirror_job(folder, source, target)


OF_TABLES = {
    "an engine without transactions": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY) ENGINE=MyISAM", "INSERT INTO bad VALUES (1)"),
        "ENGINE=InnoDB, or leave it out",
        statements(r"ALTER TABLE \S+ ENGINE=InnoDB"),
        later=("INSERT INTO bad VALUES (2)",),
    ),
    "an engine without transactions, left out": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY) ENGINE=MyISAM",), "ENGINE=InnoDB, or leave it out", left_out
    ),
    "an engine without transactions, incremental": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY) ENGINE=MyISAM",),
        "ENGINE=InnoDB.",
        statements(r"ALTER TABLE \S+ ENGINE=InnoDB"),
        kept=("mode=incremental", "log.start=latest"),
        later=(
            "DELETE FROM orders",
            "INSERT INTO bad VALUES (2)",
        ),
    ),
    "a table without its file": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY)", "ALTER TABLE bad DISCARD TABLESPACE"),
        "Check that the table still exists, that its files are whole",
        by_hand("DROP TABLE bad", "CREATE TABLE bad (id int PRIMARY KEY)"),
        later=("INSERT INTO bad VALUES (2)",),
    ),
    "a table that can't be opened": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY) ENGINE=MERGE UNION=(nowhere)",),
        "Repair the table, or leave it out",
        by_hand("DROP TABLE bad", "CREATE TABLE bad (id int PRIMARY KEY)"),
        later=("INSERT INTO bad VALUES (2)",),
    ),
    "a table that can't be opened, left out": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY) ENGINE=MERGE UNION=(nowhere)",),
        "Repair the table, or leave it out",
        left_out,
    ),
    "a system-versioned table": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY) WITH SYSTEM VERSIONING",),
        "Leave the table out: source.exclude_tables.",
        left_out,
        kind="mariadb",
    ),
    "a compressed column": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY, t text COMPRESSED)", "INSERT INTO bad VALUES (1, 'a')"),
        "Change it to the type without COMPRESSED",
        by_hand("ALTER TABLE bad MODIFY t text"),
        kind="mariadb",
        later=("UPDATE bad SET t = 'b'",),
    ),
    "a compressed column, left out": Trouble(
        ("CREATE TABLE bad (id int PRIMARY KEY, t text COMPRESSED)",), "source.exclude_tables", left_out, kind="mariadb"
    ),
    "a virtual column of the session": Trouble(
        (
            "CREATE TABLE bad (id int PRIMARY KEY, at timestamp NOT NULL, day varchar(20) AS (dayname(at)) VIRTUAL)",
            "INSERT INTO bad (id, at) VALUES (1, '2024-01-01')",
        ),
        "Drop them and add them again as STORED",
        setting,
        later=("INSERT INTO bad (id, at) VALUES (2, '2024-01-02')",),
        compared="id",
    ),
    "a virtual column and a trigger": Trouble(
        (
            "CREATE TABLE bad (id int PRIMARY KEY, n int, twice int AS (n * 2) VIRTUAL)",
            "CREATE TRIGGER changes BEFORE UPDATE ON bad FOR EACH ROW SET NEW.n = NEW.n + 1",
            "INSERT INTO bad (id, n) VALUES (1, 1)",
        ),
        "Drop them and add them again as STORED",
        by_hand("ALTER TABLE bad DROP COLUMN twice", "ALTER TABLE bad ADD COLUMN twice int AS (n * 2) STORED"),
        kind="mariadb",
        later=("UPDATE bad JOIN orders ON orders.id = bad.id SET bad.n = 7",),
    ),
    "every column is excluded": Trouble(
        ("CREATE TABLE bad (id int)",),
        "Exclude the table instead.",
        by_hand(settings=("source.exclude_tables=[SCHEMA.bad]",)),
        wrong=("source.columns={SCHEMA.bad: {exclude: [id]}}",),
    ),
    "a key that may be NULL": Trouble(
        ("CREATE TABLE bad (id int NOT NULL, code int UNIQUE, UNIQUE KEY (id))", "INSERT INTO bad VALUES (1, 1)"),
        "These would do: (id). A key's columns must be NOT NULL",
        written("source.keys={SCHEMA.bad: [FOUND]}", r"would do: \((.*?)\)"),
        wrong=("source.keys={SCHEMA.bad: [code]}",),
        later=("UPDATE bad SET code = 2",),
    ),
    "a key without an index": Trouble(
        ("CREATE TABLE bad (id int NOT NULL, code int NOT NULL)", "INSERT INTO bad VALUES (1, 1)"),
        "The table has no such key. A key's columns must be NOT NULL and have a UNIQUE index of their own.",
        by_hand("CREATE UNIQUE INDEX by_code ON bad (code)", settings=("source.keys={SCHEMA.bad: [code]}",)),
        wrong=("source.keys={SCHEMA.bad: [code]}",),
        later=("UPDATE bad SET id = 2",),
    ),
    "a view": Trouble(
        ("CREATE VIEW seen AS SELECT * FROM orders",),
        "Name the tables behind it instead.",
        by_hand(settings=("source.tables=[SCHEMA.orders]",)),
        wrong=("source.tables=[SCHEMA.seen]",),
    ),
    "a table of the server": Trouble(
        (), "Remove it from source.tables.", undone, wrong=("source.tables=[SCHEMA.*, mysql.user]",)
    ),
    "another spelling": Trouble(
        (),
        "The server spells it",
        written("source.tables=[FOUND]", r"The server spells it (\S+): write it so"),
        wrong=("source.tables=[SCHEMA.Orders]",),
    ),
}


@pytest.mark.parametrize("name", OF_TABLES)
def test_a_table_is_made_fit_or_left_out(
    request: pytest.FixtureRequest, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    trouble = OF_TABLES[name]
    source: Database = request.getfixturevalue(f"{trouble.kind}_database")
    job = a_job(tmp_path, source, postgres_database)
    get_over(job, source, postgres_database, trouble, tidemark)


@dataclass(frozen=True)
class Proxy:
    """`does`: what it does to what the client or the server sends."""

    says: str
    of_client: Rewrite = bytes
    of_server: Rewrite = bytes
    kind: str = "mysql"


def another_position() -> Rewrite:
    """Each answer shows another position of a snapshot."""
    numbers = itertools.count()

    def rewrite(chunk: bytes) -> bytes:
        return re.sub(
            rb"(?i)(binlog_snapshot_position.)\d", lambda found: found[1] + b"%d" % (next(numbers) % 10), chunk
        )

    return rewrite


PROXIES = {
    "hides the version": Proxy(
        "not through a proxy that hides its version",
        of_server=lambda chunk: re.sub(rb"^(.{4}\n\d+)\.\d", rb"\1.x", chunk, flags=re.S),
    ),
    "filters SET": Proxy("without a proxy that filters SET", replacing("SESSION time_zone", "SESSION time_zome")),
    "rewrites statements": Proxy(
        "not through a proxy that rewrites statements",
        replacing("WITH CONSISTENT SNAPSHOT", "WITH CONSISTENT NOTHING"),
        kind="mariadb",
    ),
    "answers SHOW STATUS": Proxy(
        "and connect to it directly, not through a proxy",
        replacing("binlog_snapshot_%", "nothing"),
        kind="mariadb",
    ),
    "shares connections": Proxy(
        "not through a proxy that shares connections", of_server=another_position(), kind="mariadb"
    ),
    "answers for the server": Proxy(
        "Connect to the server itself.",
        replacing(", CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)", ", 1 FROM DUAL WHERE FALSE"),
    ),
    "knows no log connections": Proxy(
        "Connect to the server itself, not through a proxy.", replacing("SET @source_heartbeat_period", "SOT ")
    ),
}


@pytest.mark.parametrize("name", PROXIES)
def test_a_server_behind_a_proxy_is_connected_to_directly(
    request: pytest.FixtureRequest,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.setattr(watermark, "MAX_ANSWERS", 2 * watermark.EQUAL_ANSWERS)
    proxy = PROXIES[name]
    source: Database = request.getfixturevalue(f"{proxy.kind}_database")
    job = a_job(tmp_path, source, postgres_database)
    with rewriting(source.server, of_client=proxy.of_client, of_server=proxy.of_server) as port:
        told = told_by(job, through(source, port))
    assert told is not None
    assert proxy.says in told
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, postgres_database)
        source.execute("UPDATE orders SET note = 'z'")


@dataclass(frozen=True)
class Global:
    """A setting of a server: its name, a value, and what is to be done for it."""

    name: str
    value: str
    says: str
    does: Way
    kind: str = "mysql"


GLOBALS = [
    Global(
        "gtid_mode",
        "ON_PERMISSIVE",
        "Finish the migration",
        statements("SET GLOBAL gtid_mode = ON"),
    ),
    Global(
        "binlog_expire_logs_seconds",
        "3600",
        "Raise binlog_expire_logs_seconds, to some days",
        by_hand("SET GLOBAL binlog_expire_logs_seconds = 259200"),
    ),
    Global(
        "binlog_expire_logs_seconds",
        "3600",
        "Raise binlog_expire_logs_seconds, to some days",
        by_hand("SET GLOBAL binlog_expire_logs_seconds = 259200"),
        kind="mariadb",
    ),
    Global("max_allowed_packet", "1048576", "or more.", statements(r"SET GLOBAL max_allowed_packet = \d+")),
]


@pytest.mark.parametrize("case", GLOBALS, ids=lambda case: f"{case.kind}-{case.name}")
def test_a_setting_that_is_warned_of_is_changed(
    request: pytest.FixtureRequest, postgres_database: Database, tmp_path: Path, case: Global
) -> None:
    source: Database = request.getfixturevalue(f"{case.kind}_database")
    ((former,),) = source.query(f"SELECT @@GLOBAL.{case.name}")
    job = a_job(tmp_path, source, postgres_database)
    try:
        source.execute(f"SET GLOBAL {case.name} = {case.value}")
        for _ in range(2):  # the job runs all the same
            told = told_by(job)
            assert told is not None
            assert case.says in told
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = 'z'")
        case.does(told, source)
        assert told_by(job) is None
        require_copies(source, postgres_database)
    finally:  # other tests have this server, too
        source.execute(f"SET GLOBAL {case.name} = {former}")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_forgotten_xa_transaction_is_committed(
    request: pytest.FixtureRequest,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    monkeypatch.setattr(xa_commits, "SHORT_WAIT_SECONDS", 0.1)
    source: Database = request.getfixturevalue(f"{kind}_database")
    job = a_job(tmp_path, source, postgres_database)
    with contextlib.closing(source.connect()) as other, other.cursor() as cursor:
        for statement in ("XA START '{}'", "INSERT INTO orders VALUES (2, 'b')", "XA END '{}'", "XA PREPARE '{}'"):
            cursor.execute(statement.format(source.name))
    told = told_by(job)
    assert told is not None
    assert "Commit or roll back those that are forgotten (XA RECOVER lists them)." in told
    for *_, xid in source.query("XA RECOVER"):
        source.execute(f"XA COMMIT '{xid if isinstance(xid, str) else xid.decode()}'")
    assert told_by(job) is None
    require_copies(source, postgres_database)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_session_that_locks_a_table_at_the_start_is_ended(
    request: pytest.FixtureRequest,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
) -> None:
    """The session is found as the remedy says; MariaDB has no metadata_locks unless they are turned on."""
    monkeypatch.setitem(connect._SESSION, "lock_wait_timeout", "1")
    source: Database = request.getfixturevalue(f"{kind}_database")
    job = a_job(tmp_path, source, postgres_database)
    with contextlib.closing(source.connect()) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES orders WRITE")
        told = told_by(job)
        assert told is not None
        assert "Let that session end, or end it." in told
        assert "MySQL in performance_schema.metadata_locks, both also in the list of their processes" in told
        found = f"SELECT id FROM {source.server.processlist} WHERE db = '{source.name}' AND command = 'Sleep'"
        if kind == "mysql":
            found = (
                "SELECT processlist_id FROM performance_schema.metadata_locks JOIN performance_schema.threads "
                f"ON thread_id = owner_thread_id WHERE object_schema = '{source.name}' AND object_name = 'orders'"
            )
        for (session,) in source.query(found):
            source.execute(f"KILL {session}")
    assert told_by(job) is None
    require_copies(source, postgres_database)


def test_gtid_mode_is_set_back(mysql_nogtid_database: Database, postgres_database: Database, tmp_path: Path) -> None:
    """It was turned on while the rows were read."""
    source = mysql_nogtid_database
    job = a_job(tmp_path, source, postgres_database)
    source.execute("INSERT INTO orders VALUES (2, 'b'), (3, 'c')")
    run_epochs(job, "snapshot.split_rows=1", "snapshot.parallelism=1", at_most=1)
    to_on, to_off = ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON"), ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF")
    consistency = ("WARN", "ON")
    source.execute(*[f"SET GLOBAL enforce_gtid_consistency = {value}" for value in consistency])
    try:
        source.execute(*[f"SET GLOBAL gtid_mode = {mode}" for mode in to_on])
        told = told_by(job)
        assert told is not None
        assert "Set gtid_mode to its former value, or start over" in told
    finally:  # other tests have this server, too
        source.execute(*[f"SET GLOBAL gtid_mode = {mode}" for mode in to_off])
        source.execute(*[f"SET GLOBAL enforce_gtid_consistency = {value}" for value in ("WARN", "OFF")])
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, postgres_database)
        source.execute("UPDATE orders SET note = 'z'")


def through(source: Database, port: int) -> str:
    """The setting of a job that reads through a port."""
    return f"source.url={source.server.url.replace(f':{source.server.port}', f':{port}')}"


LOST = {
    "at the start": ("\x03SHOW BINARY LOG STATUS", "then run the job again."),
    "a query": (
        "\x03SELECT table_rows",
        "Check the server and the network between it and the driver and executors, then run the job again.",
    ),
    "a split": ("\x16SELECT `id`, `note`", "while reading a split of"),
    "the log": (
        "^.{3}\0\x12",
        "Check the network and the source's error log; widen source.server_ids if other readers",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_a_network_that_breaks_connections_is_repaired(
    mysql_database: Database,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    for module in (session, split_reader):
        monkeypatch.setattr(module, "pause", lambda attempt: None)
    monkeypatch.setattr(connection, "_ATTEMPTS", 1)
    monkeypatch.setattr(reconnect, "FIRST_DELAY_SECONDS", 0.01)
    word, says = LOST[name]
    source = mysql_database
    job = a_job(tmp_path, source, postgres_database)
    with rewriting(source.server, of_client=closing_at(word.encode())) as port:
        told = told_by(job, through(source, port), "reconnect.attempts=0")
    assert told is not None
    assert says in told
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, postgres_database)
        source.execute("UPDATE orders SET note = 'z'")


REFUSED_ACCOUNTS = {
    "no password": ((), "Check user and password in source.url, and that the account may log in", ()),
    "locked": (
        ("ALTER USER {user} ACCOUNT LOCK",),
        "Correct what the server complains about. The page Permissions of Tidemark's documentation",
        ("ALTER USER {user} ACCOUNT UNLOCK",),
    ),
    "one connection": (
        ("ALTER USER {user} WITH MAX_USER_CONNECTIONS 1",),
        "and that it has connections to spare (max_connections, max_user_connections)",
        ("ALTER USER {user} WITH MAX_USER_CONNECTIONS 0",),
    ),
    "no database": ((), "Correct the database in source.url, or leave it out", ()),
}


@pytest.mark.parametrize("name", REFUSED_ACCOUNTS)
def test_an_account_that_is_refused(
    mysql_database: Database,
    postgres_database: Database,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
) -> None:
    monkeypatch.setattr(reconnect, "FIRST_DELAY_SECONDS", 0.01)
    source = mysql_database
    made, says, done = REFUSED_ACCOUNTS[name]
    with account(source.server, f"SELECT ON {source.name}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*") as user:
        job = a_job(tmp_path, source, postgres_database)
        url = user.url_with_password()
        another = url.replace(user.password.get_secret_value(), "pw-of-nobody")
        wrong = {"no password": another, "no database": f"{url.rstrip('/')}/nowhere"}.get(name, url)
        source.execute(*[text.format(user=user.user) for text in made])
        told = told_by(job, f"source.url={wrong}")
        assert told is not None
        assert says in told
        source.execute(*[text.format(user=user.user) for text in done])
        for _ in range(2):
            assert told_by(job, f"source.url={url}") is None
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = 'z'")


EXPIRED = (
    "Give the account another password, and write it in source.url: (ALTER USER <account> IDENTIFIED BY '<password>'). "
    "Then run the job again: it continues."
)


@pytest.mark.parametrize("runs", [False, True], ids=["before a run", "during a run"])
@pytest.mark.parametrize(
    "kind", ["mysql", "mariadb", pytest.param("mariadb that lets nobody in", marks=pytest.mark.every_server)]
)
def test_an_expired_password_is_replaced(
    postgres_database: Database, request: pytest.FixtureRequest, tmp_path: Path, kind: str, runs: bool
) -> None:
    source: Database = request.getfixturevalue(f"{kind.partition(' ')[0]}_database")
    reads_log = "REPLICATION SLAVE, REPLICATION CLIENT" + (", SLAVE MONITOR" if source.kind == "mariadb" else "")
    with contextlib.ExitStack() as stack:
        if kind.endswith("nobody in"):
            source.execute("SET GLOBAL disconnect_on_expired_password = ON")
            stack.callback(source.execute, "SET GLOBAL disconnect_on_expired_password = OFF")
        user = stack.enter_context(account(source.server, f"SELECT ON {source.name}.*", f"{reads_log} ON *.*"))
        job = a_job(tmp_path, source, postgres_database)
        old = f"source.url={user.url_with_password()}"
        assert told_by(job, old) is None
        source.execute("UPDATE orders SET note = 'b'")

        def expire() -> None:
            source.execute(f"ALTER USER {user.user} PASSWORD EXPIRE")
            sessions = source.query("SELECT id FROM information_schema.processlist WHERE user = %s", (user.user,))
            for (number,) in sessions:
                with contextlib.suppress(pymysql.err.OperationalError):  # it has ended
                    source.execute(f"KILL {number}")

        with pytest.MonkeyPatch.context() as patch:
            before_the_next_epoch(patch, expire) if runs else expire()
            told = remedy_of(job, SourceNotUsableError, old)
        found = re.fullmatch(EXPIRED.replace(".", r"\."), told)
        assert found is not None, told
        source.execute(found[1].replace("<account>", user.user).replace("<password>", NEW_PASSWORD))
        new = old.replace(user.password.get_secret_value(), NEW_PASSWORD)
        for _ in range(2):
            assert told_by(job, new) is None
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = 'z'")


def require_it_goes_on(job: Path, source: Database, target: Database, *settings: str) -> None:
    for _ in range(2):
        assert told_by(job, *settings) is None
        require_copies(source, target)
        source.execute("UPDATE orders SET note = 'z'")


def test_a_table_that_is_altered_during_the_start_is_read_by_the_next_run(
    mysql_database: Database, postgres_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(startup, "START_ATTEMPTS", 1)
    source = mysql_database
    job = a_job(tmp_path, source, postgres_database)
    alter = doing_at(b"SHOW BINLOG EVENTS IN", lambda: source.execute("ALTER TABLE orders ADD extra int"))
    with rewriting(source.server, of_client=alter) as port:
        told = told_by(job, through(source, port))
    assert told is not None
    assert told.endswith(f'Remedy: Run the job again. Table: ["{source.name}", "orders"]')
    require_it_goes_on(job, source, postgres_database)


def test_a_table_that_is_dropped_before_its_rows_are_read(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    source = mysql_database
    source.execute("CREATE TABLE bad (id int PRIMARY KEY)", "INSERT INTO bad VALUES (1)")
    job = a_job(tmp_path, source, postgres_database)
    drop = doing_at(b"SELECT table_rows.*'bad'", lambda: source.execute("DROP TABLE bad"))
    with rewriting(source.server, of_client=drop) as port:
        told = told_by(job, through(source, port))
    assert told is not None
    assert "If it was dropped, name it in source.exclude_tables; else GRANT SELECT on it to the account." in told
    excluded = f"source.exclude_tables=[{source.name}.bad]"
    for _ in range(2):
        assert told_by(job, excluded) is None
        assert postgres_database.query("SELECT * FROM copy_orders") == source.query("SELECT * FROM orders")
        source.execute("UPDATE orders SET note = 'z'")


@pytest.mark.parametrize("number", [0, 1], ids=["another flavour", "another server"])
def test_the_right_server_is_named(
    mysql_nogtid_database: Database, mysql_database: Database, postgres_database: Database, tmp_path: Path, number: int
) -> None:
    source = mysql_nogtid_database
    job = a_job(tmp_path, source, postgres_database)
    if number:
        assert told_by(job) is None
        with contextlib.closing(mysql_database.connect()) as other, other.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {source.name}")
            cursor.execute(f"CREATE TABLE {source.name}.orders (id int PRIMARY KEY, note varchar(90))")
            told = told_by(job, f"source.url={mysql_database.server.url}")
            cursor.execute(f"DROP DATABASE {source.name}")
        assert "Connect to that server itself, not to a proxy or load balancer." in str(told)
    else:
        told = told_by(job, f"source.url={source.server.url.replace('mysql', 'mariadb')}")
        assert "Write mysql:// in source.url." in str(told)
    require_it_goes_on(job, source, postgres_database)


def test_a_server_that_lost_its_uuid_gets_it_back(postgres_database: Database, tmp_path: Path) -> None:
    with start_server("mysql", {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"}) as server:
        if server.data_folder is None:
            pytest.skip("the server's files are not on this machine")
        uuid_file = server.data_folder / "auto.cnf"
        with fresh_database(server) as source:
            job = a_job(tmp_path, source, postgres_database)
            assert told_by(job) is None
            source.execute("UPDATE orders SET note = 'b'")
            server.stop()
            uuid_file.unlink()
            server.start()
            told = told_by(job)
            found = re.search(r"write (server-uuid=\S+) in the section (\[auto\]) of the file auto\.cnf", str(told))
            assert found is not None, told
            assert told_by(job) == told
            server.stop()
            uuid_file.write_text(f"{found[2]}\n{found[1]}\n")
            server.start()
            require_it_goes_on(job, source, postgres_database)


READS_LOG = "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"


@pytest.mark.parametrize("excluded", [False, True], ids=["all columns", "some columns"])
def test_an_account_gets_the_columns_that_it_lacks(
    mysql_database: Database, postgres_database: Database, tmp_path: Path, excluded: bool
) -> None:
    source = mysql_database
    source.execute("CREATE TABLE people (id int PRIMARY KEY, name varchar(90), ssn varchar(90))")
    grants = (f"SELECT ON {source.name}.orders", f"SELECT (id) ON {source.name}.people", READS_LOG)
    job = a_job(tmp_path, source, postgres_database)
    source.execute("INSERT INTO people VALUES (1, 'a', 'secret')")
    with account(source.server, *grants) as user:
        settings = [f"source.url={user.url_with_password()}"]
        if excluded:
            settings.append(f"source.columns={{{source.name}.people: {{exclude: [ssn]}}}}")
        given: set[str] = set()
        while (told := told_by(job, *settings)) is not None:
            assert ("with REFERENCES the catalog shows" in told) == excluded
            found = re.search(r"GRANT SELECT.*? ON \S+ TO <account>", told)
            assert found is not None, told
            assert found[0] not in given, told
            given.add(found[0])
            source.execute(found[0].replace("<account>", user.user))
        source.execute("UPDATE people SET name = 'b'")
        assert told_by(job, *settings) is None
    assert postgres_database.query("SELECT * FROM copy_people") == [(1, "b") if excluded else (1, "b", "secret")]
