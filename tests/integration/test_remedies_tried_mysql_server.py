"""Remedies for trouble with a whole MySQL or MariaDB server (what it logs, its files, its switches), done as they are printed:
the job goes on, and its copies are those of the source."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.servers import start_server
from tests.support.cli import CommandLine
from tests.support.leases import wait_until
from tests.support.lost_logs import end_of_log, grow_log, lose_log, purge_log, reset_log
from tests.support.remedies import run_command
from tests.support.remedy_ways import (
    Trouble,
    get_over,
    mirror_job,
    require_copies,
    statements,
    told_by,
    undone,
)
from tests.support.servers import Database, fresh_database, restart_with
from tidemark.readers.mysql.snapshot import xa_commits

pytestmark = pytest.mark.integration


def a_job(folder: Path, source: Database, target: Database, **settings: str) -> Path:
    source.execute(
        "CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY, note varchar(90))",
        "INSERT INTO orders VALUES (1, 'a')",
    )
    return mirror_job(folder, source, target, **settings)


def test_a_server_is_restarted_with_what_it_lacks(postgres_database: Database, tmp_path: Path) -> None:
    """First the log, then the databases that the log leaves out."""
    with start_server("mariadb", {"log_bin": False}) as server, fresh_database(server) as source:
        job = a_job(tmp_path, source, postgres_database)
        told = told_by(job)
        assert told is not None
        assert "Start the server with log_bin." in told
        restart_with(server, log_bin="binlog", binlog_ignore_db=source.name)
        told = told_by(job)
        assert told is not None
        assert "Restart the server without binlog_do_db and binlog_ignore_db, or leave the table out" in told
        restart_with(server, binlog_ignore_db="elsewhere")
        for _ in range(2):
            assert told_by(job) is None
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = 'z'")


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """Its log is harmed."""
    with start_server("mysql") as server:
        yield server


@pytest.fixture
def source(own_server: Server) -> Iterator[Database]:
    if own_server.data_folder is None:
        pytest.skip("the server's files are not on this machine")
    with fresh_database(own_server) as database:
        database.execute("RESET BINARY LOGS AND GTIDS")
        yield database


def files_of(source: Database) -> list[Path]:
    """The log's files, oldest first."""
    assert source.server.data_folder is not None
    return [source.server.data_folder / name for name, *_ in source.query("SHOW BINARY LOGS")]


def damage(at: bytes, by: bytes, before: int = 0) -> Callable[[Database], None]:
    """Changes the bytes `before` those that the newest file has in a note, as a bad disk does."""

    def do(source: Database) -> None:
        source.execute("UPDATE orders SET note = 'a long note that is easily found'", "FLUSH BINARY LOGS")
        *_, path, _ = files_of(source)
        content = path.read_bytes()
        place = content.rindex(at) - before
        path.write_bytes(content[:place] + by + content[place + len(by) :])

    return do


def damage_value(source: Database) -> None:
    """A text is longer than its row, and no checksum shows it."""
    source.execute("SET GLOBAL binlog_checksum = NONE")
    damage(b"a long note that", b"\xff", before=1)(source)
    source.execute("SET GLOBAL binlog_checksum = DEFAULT")


def with_size(size: int, source: Database) -> None:
    """Writes it into the header of the log's last row event."""
    source.execute("UPDATE orders SET note = 'a long note that is easily found'", "FLUSH BINARY LOGS")
    *_, path, _ = files_of(source)
    events = source.query(f"SHOW BINLOG EVENTS IN '{path.name}'")
    place = next(pos for _, pos, kind, *_ in reversed(events) if kind == "Update_rows")
    content = path.read_bytes()
    path.write_bytes(content[: place + 9] + size.to_bytes(4, "little") + content[place + 13 :])


def with_lost_changes(source: Database) -> None:
    """A statement whose changes are longer than the server may log, of a table that it can't roll back."""
    source.execute("CREATE TABLE notes (t longtext) ENGINE=MyISAM")
    source.execute("SET GLOBAL max_binlog_stmt_cache_size = 4096", "SET GLOBAL binlog_stmt_cache_size = 4096")
    try:
        with contextlib.suppress(Exception):
            source.execute("INSERT INTO notes VALUES (REPEAT('x', 100000))")
    finally:
        source.execute("SET GLOBAL binlog_stmt_cache_size = DEFAULT", "SET GLOBAL max_binlog_stmt_cache_size = DEFAULT")
    source.execute("DROP TABLE notes", "FLUSH BINARY LOGS")


def without_files(source: Database) -> None:
    oldest, *_ = files_of(source)
    oldest.rename(oldest.with_name("away"))


def with_files_again(told: str, source: Database) -> tuple[str, ...]:
    oldest, *_ = files_of(source)
    oldest.with_name("away").rename(oldest)
    return ()


OF_SERVERS = {
    "a damaged event": Trouble(
        damage(b"a long note that", b"A"), "Check the source's disk and network.", undone, before=()
    ),
    "a damaged value": Trouble(damage_value, "Look for a damaged disk or network on the source", undone, before=()),
    "an event that the server can't read": Trouble(partial(with_size, 5), "Check the source's disk", undone, before=()),
    "an event with a size that none has": Trouble(
        partial(with_size, 0x7FFFFFFF),
        "Check the source's disk",
        undone,
        before=(),
    ),
    "changes that are not in the log": Trouble(
        with_lost_changes, "Start over with an empty checkpoint", undone, before=()
    ),
    "a file that is away": Trouble(without_files, "Check the server's log files.", with_files_again),
    "a log that was reset": Trouble(reset_log, "Start over with an empty checkpoint", undone, before=()),
    "a log that was purged": Trouble(lose_log, "start over with an empty checkpoint", undone, before=()),
}


@pytest.mark.parametrize("name", OF_SERVERS)
def test_a_log_is_harmed(
    source: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path, name: str
) -> None:
    job = a_job(tmp_path, source, postgres_database)
    get_over(job, source, postgres_database, OF_SERVERS[name], tidemark)


@pytest.mark.parametrize("harm", ["a wrong byte", "a lost end"])
def test_a_log_that_stays_unreadable_is_put_back_or_passed_over(
    source: Database, postgres_database: Database, tmp_path: Path, harm: str
) -> None:
    """The checksum shows the byte. The server finds half an event at the end."""
    job = a_job(tmp_path, source, postgres_database)
    assert told_by(job) is None

    def harmed() -> tuple[Path, bytes]:
        source.execute("UPDATE orders SET note = CONCAT(note, 'b')", "FLUSH BINARY LOGS")
        *_, path, _ = files_of(source)
        whole = path.read_bytes()
        place = whole.rindex(b"ab")
        path.write_bytes(whole[:-5] if harm == "a lost end" else whole[:place] + b"A" + whole[place + 1 :])
        return path, whole

    path, whole = harmed()
    told = told_by(job)
    assert told is not None
    assert "If there is a whole copy of the file, put it in its place" in told
    path.write_bytes(whole)
    for overrides in ((), ("source.on_log_lost=resnapshot",)):
        for _ in range(2):
            assert told_by(job, *overrides) is None
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = CONCAT(note, 'c')")
        harmed()


def test_a_damaged_value_parks_its_table_alone(
    source: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    job = a_job(tmp_path, source, postgres_database, on_table_error="park")
    source.execute("CREATE TABLE others (id int PRIMARY KEY)")
    assert told_by(job) is None
    damage_value(source)
    source.execute("INSERT INTO others VALUES (7)")
    told = told_by(job)
    assert told is not None
    assert "Look for a damaged disk or network on the source. Remedy: To read the table again" in told
    assert postgres_database.query("SELECT id FROM copy_others") == [(7,)]
    run_command(told, job, tidemark)
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, postgres_database)
        source.execute("UPDATE orders SET note = 'z'")


def test_a_file_that_the_list_of_files_lacks(postgres_database: Database, tmp_path: Path) -> None:
    """MariaDB: MySQL has the list in memory."""
    with start_server("mariadb") as server, fresh_database(server) as source:
        if server.data_folder is None:
            pytest.skip("the server's files are not on this machine")
        job = a_job(tmp_path, source, postgres_database)
        assert told_by(job) is None
        source.execute("FLUSH BINARY LOGS", "UPDATE orders SET note = 'b'")
        ((_, place),) = source.query("SHOW VARIABLES LIKE 'log_bin_index'")
        files = Path(server.data_folder, Path(place).name)
        listed = files.read_bytes()
        newest = Path(listed.decode().split()[-1]).name  # SHOW BINARY LOGS would have the server remember them
        overwrite(files, listed.replace(newest.encode(), newest[:-1].encode() + b"9"))
        told = told_by(job)
        assert told is not None
        assert (
            f"Put {newest} back into the server's list of its log files (SHOW VARIABLES LIKE 'log_bin_index')" in told
        )
        overwrite(files, listed)
        statements("FLUSH BINARY LOGS")(told, source)
        for _ in range(2):
            assert told_by(job) is None
            require_copies(source, postgres_database)
            source.execute("UPDATE orders SET note = 'z'")


def overwrite(path: Path, content: bytes) -> None:
    """Changes the file itself: the server has it open."""
    with path.open("r+b") as file:
        file.write(content)


def test_a_prepared_transaction_whose_log_is_gone(
    source: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    """It was prepared before the job started."""
    job = a_job(tmp_path, source, postgres_database)
    with contextlib.closing(source.connect()) as other, other.cursor() as cursor:
        for statement in ("XA START 'x'", "INSERT INTO orders VALUES (2, 'b')", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(statement)
    source.execute("FLUSH BINARY LOGS")
    assert "If the server has deleted the log in which they were prepared, the job then stops." in str(told_by(job))

    def make(source: Database) -> None:
        purge_log(source)
        source.execute("XA COMMIT 'x'")

    says = "Let the server keep its log for longer than XA transactions stay prepared."
    get_over(job, source, postgres_database, Trouble(make, says, undone), tidemark)


def test_a_server_that_waits_for_a_semi_synchronous_replica(
    mysql_database: Database, postgres_database: Database, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(xa_commits, "VISIBILITY_WAIT_SECONDS", 0.5)
    source, name = mysql_database, "rpl_semi_sync_source"
    job = a_job(tmp_path, source, postgres_database)
    source.execute(f"INSTALL PLUGIN {name} SONAME 'semisync_source.so'")
    settings = ("wait_point = AFTER_SYNC", "timeout = 600000", "wait_no_replica = ON", "enabled = ON")
    source.execute(*[f"SET GLOBAL {name}_{setting}" for setting in settings])
    writer = threading.Thread(target=source.execute, args=("INSERT INTO orders VALUES (2, 'b')",))
    try:
        before = end_of_log(source)
        writer.start()
        wait_until(lambda: end_of_log(source) > before)
        told = told_by(job)
        assert told is not None
        assert "Check whether the server waits for a semi-synchronous replica." in told
    finally:
        source.execute(f"SET GLOBAL {name}_enabled = OFF")
        writer.join()
        source.execute(f"UNINSTALL PLUGIN {name}")
    for _ in range(2):
        assert told_by(job) is None
        require_copies(source, postgres_database)
        source.execute("UPDATE orders SET note = 'z'")


def test_a_log_without_gtids_was_reset(
    mysql_nogtid_database: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    """Its file of the same name is another one."""

    def make(source: Database) -> None:
        end = end_of_log(source)
        reset_log(source)
        source.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, note text)")
        grow_log(source, end)

    says = "If the source's log was reset, or the server was restored or replaced: start over"
    job = a_job(tmp_path, mysql_nogtid_database, postgres_database)
    get_over(job, mysql_nogtid_database, postgres_database, Trouble(make, says, undone, before=()), tidemark)


def test_a_log_that_is_purged_while_a_transaction_stays_prepared(
    source: Database, postgres_database: Database, tidemark: CommandLine, tmp_path: Path
) -> None:
    """The job must read the log again from where it was prepared."""
    other = source.connect()

    def make(source: Database) -> None:
        with contextlib.closing(other), other.cursor() as cursor:
            for statement in ("XA START 'y'", "INSERT INTO orders VALUES (2, 'b')", "XA END 'y'", "XA PREPARE 'y'"):
                cursor.execute(statement)
        source.execute("FLUSH BINARY LOGS", "INSERT INTO orders VALUES (3, 'c')")
        assert "XA RECOVER lists them" in str(told_by(job))
        purge_log(source)
        source.execute("XA COMMIT 'y'")

    job = a_job(tmp_path, source, postgres_database)
    says = "Let the server keep its log longer: binlog_expire_logs_seconds."
    get_over(job, source, postgres_database, Trouble(make, says, undone, before=()), tidemark)
