"""Remedies for trouble with servers (settings, logs, locks, rights, TLS, poolers, standbys), done as they are printed: the job
goes on, and its copy is that of the source."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.certificates import serve_mysql, serve_postgres, server_certificate
from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.failover import follow
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.leases import wait_until
from tests.support.mysql_accounts import account
from tests.support.pooler import pooler
from tests.support.postgres_roles import role
from tests.support.postgres_standby import primary_and_standby
from tests.support.remedies import advice_of, commands_in, remedy_of, run_command, run_through, what_is_told
from tests.support.remedy_ways import mirror_job
from tests.support.servers import Database, FindServer, fresh_database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.sinks.files import merging
from tidemark.sinks.files import sink as files_sink
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.sinks.mirror.mysql import session as mysql_session
from tidemark.sinks.mirror.postgres import session as postgres_session
from tidemark.sinks.sink import SinkBusyError
from tidemark.state.errors import SinkError, SourceNotUsableError, TidemarkError
from tidemark.state.remedies import START_OVER

pytestmark = pytest.mark.integration
NEW_PASSWORD = "n3w-Passw0rd"
"""No word: it is masked in all that this process prints."""


def orders(source: Database) -> None:
    source.execute("CREATE TABLE orders (id int PRIMARY KEY, note varchar(90))", "INSERT INTO orders VALUES (1, 'a')")


def job_of(folder: Path, source: Database, target: Database, *, target_url: str | None = None, **settings: Any) -> Path:
    return mirror_job(folder, source, target, sink=None if target_url is None else {"url": target_url}, **settings)


def require_equal(source: Database, target: Database) -> None:
    held, wanted = (
        database.query(f"SELECT * FROM {name} ORDER BY id")
        for database, name in ((target, "copy_orders"), (source, "orders"))
    )
    assert held == wanted


@pytest.fixture(params=["mysql", "mariadb", "postgres"])
def target(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(f"{request.param}_database")
    return database


@pytest.fixture
def source(target: Database, request: pytest.FixtureRequest) -> Database:
    """On another server than `target`."""
    name = "mysql_database" if target.kind == "postgres" else "postgres_database"
    database: Database = request.getfixturevalue(name)
    return database


@pytest.mark.parametrize("at", ["the start", "a later start"])
@pytest.mark.parametrize("is_partitioned", [False, True])
def test_an_unlogged_table_is_set_logged(
    postgres_source_database: Database,
    mysql_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    at: str,
    is_partitioned: bool,
) -> None:
    source = postgres_source_database
    columns = "id int PRIMARY KEY, note varchar(90)"
    if is_partitioned:
        source.execute(
            f"CREATE TABLE orders ({columns}) PARTITION BY HASH (id)",
            "CREATE TABLE part PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
        )
    else:
        source.execute(f"CREATE TABLE orders ({columns})")
    unlogged = f"ALTER TABLE {'part' if is_partitioned else 'orders'} SET UNLOGGED"
    options = "WITH (publish_via_partition_root = true)"
    source.execute("INSERT INTO orders VALUES (1, 'a')", f'CREATE PUBLICATION "{source.name}" FOR ALL TABLES {options}')
    job = job_of(tmp_path, source, mysql_database, tables=["public.orders"])
    if at == "a later start":
        run_epochs(job)
    source.execute(unlogged, "INSERT INTO orders VALUES (2, 'b')", "UPDATE orders SET note = 'z' WHERE id = 1")
    told: list[str] = []
    while (advice := what_is_told(job)) is not None:
        assert advice not in told, advice
        told.append(advice)
        source.execute(*re.findall(r"ALTER TABLE \S+ SET LOGGED", advice))
        if commands_in(advice):
            run_command(advice, job, tidemark)
        elif START_OVER in advice and "SET LOGGED" not in advice:
            tidemark("drop", job, "--yes")
            shutil.rmtree(tmp_path / "checkpoint")
            mysql_database.execute("DROP TABLE copy_orders", "DELETE FROM tidemark_tables")
    assert "SET LOGGED" in told[0]
    for note in ("c", "d"):
        run_through(job)
        require_equal(source, mysql_database)
        source.execute(f"UPDATE orders SET note = '{note}'")


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def silent_replica(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """A primary and a replica that does not log what it replicates."""
    name = "log_replica_updates" if request.param == "mysql" else "log_slave_updates"
    with (
        start_server(request.param, {"server_id": 11}) as primary,
        start_server(request.param, {"server_id": 12, name: "OFF"}) as replica,
    ):
        follow(replica, primary)
        yield primary, replica


def has_orders(database: Database) -> bool:
    """The database may be not there yet."""
    found = f"SELECT 1 FROM information_schema.tables WHERE table_schema = '{database.name}' AND table_name = 'orders'"
    with contextlib.closing(database.server.connect()) as connection, connection.cursor() as cursor:
        return bool(cursor.execute(found))


def test_the_source_of_a_replica_that_does_not_log_is_read(
    silent_replica: tuple[Server, Server], postgres_database: Database, tmp_path: Path
) -> None:
    primary, replica = silent_replica
    with fresh_database(primary) as source:
        orders(source)
        there = replace(source, server=replica)
        wait_until(lambda: has_orders(there))
        remedy = remedy_of(job_of(tmp_path, there, postgres_database), SourceNotUsableError)
        assert re.fullmatch(r"Restart it with log_(slave|replica)_updates=ON, or read from its source\.", remedy)
        job = job_of(tmp_path, source, postgres_database)
        for _ in range(2):
            run_epochs(job)
            require_equal(source, postgres_database)
            source.execute("INSERT INTO orders SELECT max(id) + 1, 'b' FROM orders")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("policy", ["park", "stop"])
def test_a_target_takes_longer_packets(
    find_server: FindServer,
    postgres_database: Database,
    tidemark: CommandLine,
    tmp_path: Path,
    kind: str,
    policy: str,
) -> None:
    source, small = postgres_database, 1 << 20
    server = find_server(kind, max_allowed_packet=small)
    with fresh_database(server) as target:
        source.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'a')")
        job = job_of(tmp_path, source, target, on_table_error=policy)
        run_epochs(job)
        source.execute(f"INSERT INTO orders VALUES (2, repeat('b', {2 * small}))")
        advice = advice_of(job)
        assert "Raise max_allowed_packet on the target's server" in advice
        try:
            target.execute(f"SET GLOBAL max_allowed_packet = {8 * small}")
            if commands_in(advice):
                run_command(advice, job, tidemark)
            run_through(job)
            require_equal(source, target)
        finally:  # other tests may have this server, too
            target.execute(f"SET GLOBAL max_allowed_packet = {small}")


LOCKS = {
    "mysql": "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX",
    "mariadb": "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX",
    "postgres": "SELECT pid FROM pg_locks JOIN pg_class ON pg_class.oid = relation WHERE relname = 'copy_orders'",
}
"""Which sessions have locks, found as the remedy says."""


def test_a_session_that_keeps_the_copy_locked_is_ended(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(mysql_session._SESSION, "innodb_lock_wait_timeout", 1)
    patient = f"lock_timeout = '{postgres_session.LOCK_WAIT_SECONDS}s'"
    assert patient in postgres_session._SESSION
    monkeypatch.setattr(postgres_session, "_SESSION", postgres_session._SESSION.replace(patient, "lock_timeout = '1s'"))
    monkeypatch.setattr(mirror_writer, "ATTEMPTS", 1)  # each is made by all attempts of the epoch
    orders(source)
    job = job_of(tmp_path, source, target)
    run_epochs(job)
    source.execute("UPDATE orders SET note = 'z'", "INSERT INTO orders VALUES (2, 'b')")
    with contextlib.closing(target.connect()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT id FROM copy_orders WHERE id = 1 FOR UPDATE")
        remedy = remedy_of(job, SinkBusyError)
        assert "Let that session end its transaction, or end it (" in remedy
        assert ("pg_locks" if target.kind == "postgres" else "information_schema.INNODB_TRX") in remedy
        end = "SELECT pg_terminate_backend({})" if target.kind == "postgres" else "KILL {}"
        for (number,) in set(target.query(LOCKS[target.kind])):
            target.execute(end.format(number))
        run_through(job)
    require_equal(source, target)


@pytest.mark.parametrize("lost", ["ALL", "INSERT, UPDATE"])
def test_rights_that_an_account_of_the_target_lost_are_given_again(
    source: Database, target: Database, tmp_path: Path, lost: str
) -> None:
    """In MySQL as they are printed; PostgreSQL's remedy has no statement."""
    orders(source)
    with contextlib.ExitStack() as stack:
        if target.kind == "postgres":
            rights = "CREATE, USAGE ON SCHEMA public", f"TEMPORARY ON DATABASE {target.name}"
            endpoint = stack.enter_context(role(target, *rights))
            url = endpoint.url_with_password()
        else:
            endpoint = stack.enter_context(account(target.server, f"ALL ON {target.name}.*"))
            url = f"{endpoint.url_with_password().rstrip('/')}/{target.name}"
        job = job_of(tmp_path, source, target, target_url=url)
        run_epochs(job)
        if target.kind == "postgres":
            target.execute(f"REVOKE {lost} ON copy_orders FROM {endpoint.user}")
        else:
            target.execute(f"REVOKE {lost} ON {target.name}.* FROM {endpoint.user}")
        source.execute("UPDATE orders SET note = 'z'", "INSERT INTO orders VALUES (2, 'b')")
        advice = advice_of(job)
        if target.kind == "postgres":
            assert "CREATE and USAGE on the target schema, and all rights on its tables" in advice
            target.execute(
                f"GRANT CREATE, USAGE ON SCHEMA public TO {endpoint.user}",
                f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {endpoint.user}",
            )
        else:
            of_postgres = "for copies of PostgreSQL tables (CREATE TEMPORARY TABLES)"
            found = re.search(rf"privileges: ([A-Z, ]+) and (DROP) on the target database; {of_postgres}", advice)
            assert found is not None, advice
            target.execute(f"GRANT {', '.join(found.groups())} ON {target.name}.* TO {endpoint.user}")
        run_through(job)
        require_equal(source, target)


@pytest.mark.parametrize("target", ["mysql", "mariadb"], indirect=True)
def test_an_expired_password_of_the_target_is_replaced(source: Database, target: Database, tmp_path: Path) -> None:
    orders(source)
    with account(target.server, f"ALL ON {target.name}.*") as user:
        old = f"{user.url_with_password().rstrip('/')}/{target.name}"
        job = job_of(tmp_path, source, target, target_url=old)
        run_epochs(job)
        source.execute("UPDATE orders SET note = 'z'")
        target.execute(f"ALTER USER {user.user} PASSWORD EXPIRE")
        found = re.search(
            r"write it in sink\.url: (ALTER USER .*)\. Then run the job again", told := remedy_of(job, SinkError)
        )
        assert found is not None, told
        target.execute(found[1].replace("<account>", user.user).replace("<password>", NEW_PASSWORD))
        run_through(job, f"sink.url={old.replace(user.password.get_secret_value(), NEW_PASSWORD)}")
        require_equal(source, target)


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "not merged"])
def test_a_damaged_file_that_is_to_be_merged(
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    restored: bool,
) -> None:
    for module in (merging, files_sink):
        monkeypatch.setattr(module, "MERGED_FILES", 2)
    source, out = mysql_database, tmp_path / "out"
    orders(source)
    sink = {"type": "files", "path": str(out), "format": "parquet", "merge_small_files": True}
    job = write_job(tmp_path, source=source_of(source), sink=sink)
    run_epochs(job)
    number = 1
    while not (logs := sorted((out / f"{source.name}.orders").glob("*-log.parquet"))):
        number += 1
        source.execute(f"INSERT INTO orders VALUES ({number}, 'b')")
        run_epochs(job)
    shutil.copy(logs[-1], tmp_path / "saved")
    logs[-1].write_bytes(b"?" * 100)
    while (told := what_is_told(job)) is None:
        number += 1
        source.execute(f"INSERT INTO orders VALUES ({number}, 'b')")
    assert "Restore it from a copy, or set sink.merge_small_files: false." in told
    settings = () if restored else ("sink.merge_small_files=false",)
    if restored:
        shutil.copy(tmp_path / "saved", logs[-1])
    for _ in range(3):
        number += 1
        source.execute(f"INSERT INTO orders VALUES ({number}, 'b')")
        run_through(job, *settings)
    if not restored:
        shutil.copy(tmp_path / "saved", logs[-1])
    assert read_history(out, source.name, "orders").num_rows == number


def test_a_server_behind_a_pooler_is_connected_to_directly(
    postgres_database: Database, mysql_database: Database, tmp_path: Path
) -> None:
    orders(postgres_database)
    server = parse_endpoint(postgres_database.url)
    job = job_of(tmp_path, postgres_database, mysql_database)
    with pooler(server.host, server.port) as port:
        behind = f"postgresql://{server.user}@127.0.0.1:{port}/{postgres_database.name}"
        remedy = remedy_of(job, SourceNotUsableError, f"source.url={behind}")
        assert remedy == "Connect directly: write the server's own host and port in source.url."
    run_through(job)
    require_equal(postgres_database, mysql_database)


@pytest.fixture(scope="module", params=["mysql", "postgres"])
def encrypted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    """A server with TLS, and the authority that signed its certificate."""
    folder = tmp_path_factory.mktemp("tls")
    with start_server(request.param) as server:
        own = server_certificate(server.host)
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            (serve_mysql if request.param == "mysql" else serve_postgres)(cursor, own)
        (folder / "ca.pem").write_text(own.authority)
        yield server, str(folder / "ca.pem")


@pytest.mark.parametrize("at", ["source", "sink"])
def test_the_authority_and_the_host_of_a_certificate_are_named(
    encrypted: tuple[Server, str], mariadb_database: Database, tmp_path: Path, at: str
) -> None:
    server, ca = encrypted
    with fresh_database(server) as inside:
        source, target = (inside, mariadb_database) if at == "source" else (mariadb_database, inside)
        orders(source)
        job = job_of(tmp_path, source, target)
        url = source_of(source)["url"] if at == "source" else f"{server.url}{inside.name}"
        wrong = url.replace(server.host, "localhost")
        told = remedy_of(job, TidemarkError, f"{at}.tls={{}}", f"{at}.url={wrong}")
        assert f"{at}.tls.ca" in told
        assert f"the host in {at}.url" in told
        assert remedy_of(job, TidemarkError, f"{at}.tls={{ca: {ca}}}", f"{at}.url={wrong}") == told
        for _ in range(2):
            run_through(job, f"{at}.tls={{ca: {ca}}}")
            require_equal(source, target)
            source.execute("INSERT INTO orders SELECT max(id) + 1, 'b' FROM orders")


@pytest.mark.every_server
def test_a_standby_is_read_as_it_is_printed(mysql_database: Database, tmp_path: Path) -> None:
    """Its setting, the publication on the primary, and a table that is new there."""
    with primary_and_standby("shop", "18") as pair:
        primary, standby = pair.database, pair.promoted
        orders(primary)
        pair.await_standby()
        job = job_of(tmp_path, standby, mysql_database)
        assert "write source.standby: true" in remedy_of(job, SourceNotUsableError)
        job = job_of(tmp_path, standby, mysql_database, standby=True)
        create = re.search(r"On the primary: (CREATE PUBLICATION .*\))\.", remedy_of(job, SourceNotUsableError))
        assert create is not None
        primary.execute(create[1])
        pair.await_standby()
        primary.query("SELECT pg_log_standby_snapshot()")
        run_through(job)
        require_equal(standby, mysql_database)
        primary.execute("CREATE TABLE others (id int PRIMARY KEY)", "INSERT INTO orders VALUES (2, 'b')")
        pair.await_standby()
        add = re.search(r"ALTER PUBLICATION .*? ADD TABLE ONLY \S+\"", advice_of(job))
        assert add is not None
        primary.execute(add[0], "INSERT INTO others VALUES (1)")
        pair.await_standby()
        primary.query("SELECT pg_log_standby_snapshot()")
        run_through(job)
        require_equal(standby, mysql_database)
        assert mysql_database.query("SELECT id FROM copy_others") == [(1,)]


UNENCRYPTED = {
    "mysql": "The server accepts only encrypted connections: add source.tls.",
    "postgres": "Let pg_hba.conf admit the role from driver and executors. If it requires encryption, add source.tls.",
}


def test_a_connection_is_encrypted_as_the_server_wants_it(
    encrypted: tuple[Server, str], mariadb_database: Database, tmp_path: Path
) -> None:
    server, ca = encrypted
    with fresh_database(server) as source:
        orders(source)
        job = job_of(tmp_path, source, mariadb_database)
        with only_encrypted(server):
            assert UNENCRYPTED[server.kind] in remedy_of(job, SourceNotUsableError)
            run_through(job, f"source.tls={{ca: {ca}}}")
        source.execute("UPDATE orders SET note = 'z'")
        run_through(job, f"source.tls={{ca: {ca}}}")
        require_equal(source, mariadb_database)


@contextlib.contextmanager
def only_encrypted(server: Server) -> Iterator[None]:
    """Lets the server refuse connections without TLS."""
    if server.kind == "mysql":
        with contextlib.closing(server.connect(ssl_disabled=False)) as other, other.cursor() as cursor:
            cursor.execute("SET GLOBAL require_secure_transport = ON")
            try:
                yield
            finally:
                cursor.execute("SET GLOBAL require_secure_transport = OFF")
        return
    if server.data_folder is None:
        pytest.skip("the server's files are not on this machine")
    rules = server.data_folder / "pg_hba.conf"
    former = rules.read_text()
    with contextlib.closing(server.connect()) as other, other.cursor() as cursor:
        try:
            rules.write_text(f"hostnossl all all all reject\n{former}")
            cursor.execute("SELECT pg_reload_conf()")
            wait_until(lambda: is_refused(server))
            yield
        finally:
            rules.write_text(former)
            cursor.execute("SELECT pg_reload_conf()")
            wait_until(lambda: not is_refused(server))


def is_refused(server: Server) -> bool:
    try:
        server.connect(sslmode="disable").close()
    except psycopg2.OperationalError:
        return True
    return False


def test_an_account_that_requires_encryption(
    encrypted: tuple[Server, str], mariadb_database: Database, tmp_path: Path
) -> None:
    server, ca = encrypted
    if server.kind == "postgres":
        pytest.skip("PostgreSQL asks that of addresses, not of roles")
    with (
        fresh_database(server) as source,
        account(server, f"SELECT ON {source.name}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*") as user,
    ):
        orders(source)
        source.execute(f"ALTER USER {user.user} REQUIRE SSL")
        job = job_of(tmp_path, source, mariadb_database, url=user.url_with_password())
        told = remedy_of(job, SourceNotUsableError)
        assert "If the account or the server requires encryption, add source.tls." in told
        wrong = tmp_path / "wrong.pem"
        wrong.write_text("no certificate")
        files = remedy_of(job, SourceNotUsableError, f"source.tls={{ca: {ca}, cert: {ca}, key: {wrong}}}")
        assert files == "Give existing PEM files; the key must have no passphrase and belong to the certificate."
        for _ in range(2):
            run_through(job, f"source.tls={{ca: {ca}}}")
            require_equal(source, mariadb_database)
            source.execute("UPDATE orders SET note = 'z'")
