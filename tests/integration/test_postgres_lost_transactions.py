"""A standby is promoted that lacks the last transactions: only the rows that these changed are read again (docs/adr/0073)."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.server import Server
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.history import assert_mirrored, assert_newest_rows, read_history
from tests.support.jobs import source_of, write_workload_job
from tests.support.keyless import assert_keyless_copied
from tests.support.postgres_standby import Pair, primary_and_standby
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.readers.log import touched_keys
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError

pytestmark = pytest.mark.integration

LOST = (
    "UPDATE orders SET version = 7 WHERE id IN (3, 4)",
    "UPDATE orders SET id = 5000 WHERE id = 5",
    "DELETE FROM orders WHERE id = 6",
    "INSERT INTO orders (id, uid, version) VALUES (7000, 77, 1)",
    "DELETE FROM order_lines WHERE order_id = 2",
)
"""They touch 6 keys of orders and 4 of order_lines."""
AFTERWARDS = (
    "UPDATE orders SET version = version + 1 WHERE id IN (4, 6)",
    "DELETE FROM orders WHERE id = 5",
    "INSERT INTO orders (id, uid, version) VALUES (7000, 78, 5), (7001, 79, 1)",
    "UPDATE order_lines SET version = version + 1 WHERE order_id = 2 AND line_no = 1",
    "UPDATE customers SET version = version + 1",
)
POINTS = (
    ("", "files"),
    ("", "mirror"),
    ("lost_transactions.read", "files"),
    ("another_server.moved", "mirror"),
    ("log.before_report", "files"),
    ("sink.before_commit", "mirror"),
    ("sink.after_commit", "files"),
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with primary_and_standby("shop") as servers:
        create_tables(servers.database, rows=60, uids=Uids())
        tables = ", ".join(KEYS)
        servers.database.execute(f"CREATE PUBLICATION shop FOR TABLE {tables} WITH (publish_via_partition_root = true)")
        yield servers


class Copy:
    """A job with a slot of its own, so that many of them have one failover."""

    def __init__(self, pair: Pair, folder: Path, target: Database | None) -> None:
        self.pair, self.folder, self.target = pair, folder, target
        self.notes = Notes()
        folder.mkdir()
        slot = f"slot_{folder.name}"
        pair.create_slot(slot)
        source = source_of(pair.database, url=pair.url, on_log_lost="resnapshot", slot=slot, publication="shop")
        self.job = write_workload_job(folder, source, target, job=folder.name)

    def run(self, *overrides: str) -> list[str]:
        return run_epochs(self.job, *overrides, notes=self.notes)

    @property
    def moved(self) -> str:
        (text,) = [facts["text"] for event, facts in self.notes.found if event == "moved"]
        return str(text)

    def check(self) -> None:
        if self.target is None:
            assert_newest_rows(self.folder / "out", self.pair.promoted)
        else:
            assert_mirrored(self.pair.promoted, self.target)


def lose(pair: Pair, copies: list[Copy], *statements: str) -> None:
    """Lets the jobs read statements that the standby never gets, and promotes it."""
    for _ in range(2):
        for copy in copies:
            copy.run()
        pair.database.execute(*UPDATE_ALL)
    for copy in copies:
        copy.run()
    pair.await_standby()
    pair.fall_behind()
    pair.database.execute(*statements)
    for copy in copies:
        copy.run("sink.on_schema_change=evolve")
    pair.fail_over()


def test_only_the_rows_that_lost_transactions_changed_are_read_again(
    pair: Pair, postgres_server: Server, tmp_path: Path
) -> None:
    """Several jobs do so, most of which die on the way."""
    with contextlib.ExitStack() as stack:
        copies = []
        for number, (_, sink) in enumerate(POINTS):
            target = stack.enter_context(fresh_database(postgres_server)) if sink == "mirror" else None
            copies.append(Copy(pair, tmp_path / f"job{number}", target))
        lose(pair, copies, *LOST)
        pair.promoted.execute(*AFTERWARDS)
        for copy, (point, _) in zip(copies, POINTS, strict=True):
            if point:
                die_at(copy.job, point, notes=copy.notes)
            assert set(copy.run()) <= {"stream"}
            if point != "another_server.moved":  # else the driver that died could not say it
                assert "4 keys of public.order_lines, 6 keys of public.orders." in copy.moved
            copy.check()
        pair.promoted.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
        for copy in copies:
            assert copy.run() == ["stream"]
            copy.check()


def test_tables_of_which_the_keys_are_not_known_are_read_again(
    pair: Pair, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one of which a row got another key, and only the copy has its long value, as it was changed by what is lost."""
    monkeypatch.setattr(touched_keys, "MAX_KEYS", 50)
    copies = [Copy(pair, tmp_path / "files", None), Copy(pair, tmp_path / "mirror", postgres_database)]
    [(code, uid)] = pair.database.query("SELECT code, uid FROM customers ORDER BY length(note) DESC LIMIT 1")
    quoted = code.replace("'", "''")
    lose(
        pair,
        copies,
        "UPDATE orders SET version = 9",
        f"UPDATE customers SET note = reverse(note) WHERE code = '{quoted}'",
    )
    pair.promoted.execute(*AFTERWARDS, f"UPDATE customers SET code = 'moved' WHERE code = '{quoted}'")
    for copy in copies:
        assert "snapshot" in copy.run("sink.on_schema_change=evolve")
        assert "1 key of public.customers, all rows of public.orders (its keys were not noted)." in copy.moved
        copy.check()
    notes = "SELECT note FROM %s WHERE uid = %%s"
    assert postgres_database.query(notes % "copy_customers", (uid,)) == pair.promoted.query(notes % "customers", (uid,))


ALTERED = {
    "truncated": ("TRUNCATE truncated",),
    "computed": ("ALTER TABLE computed ALTER note TYPE text USING upper(note)",),
    "wider": ("ALTER TABLE wider ALTER version TYPE bigint USING version * 2",),
    "created": (
        "DROP TABLE created",
        "CREATE TABLE created (id int PRIMARY KEY, version int, note text)",
        "INSERT INTO created VALUES (3, 3, 'lost')",
        "ALTER PUBLICATION shop ADD TABLE created",
    ),
    "moved": ("VACUUM FULL moved",),
    "extended": ("ALTER TABLE extended ADD extra int DEFAULT 5", "UPDATE extended SET extra = 6 WHERE id < 4"),
    "indexed": ("CREATE UNIQUE INDEX one ON indexed (id, version)",),
    "logged": (
        "ALTER TABLE logged SET TABLESPACE pg_default",
        "TRUNCATE logged",
        "INSERT INTO logged VALUES (9, 9, 'lost')",
    ),
    "divided": (
        "CREATE TABLE divided_b PARTITION OF divided FOR VALUES FROM (30) TO (90)",
        "INSERT INTO divided VALUES (30)",
    ),
}
"""Statements that only the dead primary has, by the table that they alter."""
AFTER_THEM = (
    *(f"UPDATE {name} SET version = version + 5 WHERE id IN (2, 4)" for name in ALTERED),
    *(f"DELETE FROM {name} WHERE id = 5" for name in ALTERED),
    "TRUNCATE moved",
    "INSERT INTO moved VALUES (4, 4, 'kept')",
)


def create_altered(pair: Pair) -> None:
    for name in ALTERED:
        parts = " PARTITION BY RANGE (id)" if name == "divided" else ""
        pair.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, version int, note text){parts}")
        if parts:
            pair.database.execute(f"CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES FROM (0) TO (30)")
        pair.database.execute(
            f"INSERT INTO {name} SELECT i, i, 'row ' || i FROM generate_series(1, 20) AS i",
            f"ALTER PUBLICATION shop ADD TABLE {name}",
        )


def assert_altered_copied(pair: Pair, target: Database) -> None:
    for name in ALTERED:
        query = "SELECT id, version, note FROM %s ORDER BY id"
        assert target.query(query % f"copy_{name}") == pair.promoted.query(query % name), name


FOLLOWS = ("sink.on_schema_change=evolve", "source.on_table_error=park")


@pytest.mark.parametrize("point", ["", pytest.param("another_server.left", marks=pytest.mark.every_server)])
def test_only_tables_that_were_altered_are_read_again(
    pair: Pair, postgres_database: Database, tmp_path: Path, point: str
) -> None:
    """Other tables only have those rows read again that lost transactions changed."""
    create_altered(pair)
    copy = Copy(pair, tmp_path / "mirror", postgres_database)
    for _ in range(2):
        copy.run(*FOLLOWS)
        pair.database.execute(*UPDATE_ALL)
    copy.run(*FOLLOWS)
    pair.await_standby()
    pair.fall_behind()
    pair.database.execute(*LOST, *(statement for statements in ALTERED.values() for statement in statements))
    copy.run(*FOLLOWS)
    pair.fail_over()
    pair.promoted.execute(*AFTERWARDS, *AFTER_THEM)
    copy.notes.found.clear()
    if point:
        die_at(copy.job, point, *FOLLOWS, notes=copy.notes)
    copy.run(*FOLLOWS)
    again = {facts["table"] for event, facts in copy.notes.found if event == "joined"}
    assert again == {f"public.{name}" for name in ALTERED}
    assert_altered_copied(pair, postgres_database)
    copy.check()
    pair.promoted.execute(*UPDATE_ALL, *(f"UPDATE {name} SET version = -id" for name in ALTERED))
    assert copy.run(*FOLLOWS) == ["stream"]
    assert_altered_copied(pair, postgres_database)
    copy.check()


@pytest.mark.every_server
def test_a_table_that_was_altered_at_both_servers_is_read_again(pair: Pair, tmp_path: Path) -> None:
    """The promoted server lacks nothing, which nobody can tell of the catalogs. The other tables go on."""
    copy = Copy(pair, tmp_path / "files", None)
    copy.run()
    pair.database.execute("TRUNCATE orders", *UPDATE_ALL)
    copy.run("sink.on_schema_change=evolve")
    pair.await_standby()
    pair.fail_over()
    pair.promoted.execute(*AFTERWARDS)
    copy.notes.found.clear()
    copy.run("sink.on_schema_change=evolve")
    assert [facts["table"] for event, facts in copy.notes.found if event == "joined"] == ["public.orders"]
    copy.check()


@pytest.mark.every_server
def test_rows_kept_of_a_partition_that_was_detached_at_both_servers_go(
    pair: Pair, postgres_database: Database, tmp_path: Path
) -> None:
    """With `partitions_removed: keep`, if the look that found it is not proven: the table is read again. Else they stay."""
    for name in ("early", "late"):
        pair.database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, version int) PARTITION BY RANGE (id)",
            f"CREATE TABLE {name}_a PARTITION OF {name} FOR VALUES FROM (0) TO (10)",
            f"CREATE TABLE {name}_b PARTITION OF {name} FOR VALUES FROM (10) TO (20)",
            f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 19) AS i",
            f"ALTER PUBLICATION shop ADD TABLE {name}",
        )
    copy, keeps = Copy(pair, tmp_path / "mirror", postgres_database), (*FOLLOWS, "source.partitions_removed=keep")
    copy.run(*keeps)
    pair.database.execute("ALTER TABLE early DETACH PARTITION early_a")
    for _ in range(3):
        pair.database.execute(*UPDATE_ALL)
        copy.run(*keeps)
    pair.database.execute("ALTER TABLE late DETACH PARTITION late_a", *UPDATE_ALL)
    run_epochs(copy.job, *keeps, at_most=1)
    pair.await_standby()
    pair.fail_over()
    pair.promoted.execute("UPDATE early SET version = -id", "UPDATE late SET version = -id")
    copy.notes.found.clear()
    copy.run(*keeps)
    again = {facts["table"] for event, facts in copy.notes.found if event == "joined"}
    assert again == {"public.late", "public.late_a"}  # late_a is a table of its own now
    kept, new = [(i, i) for i in range(1, 10)], [(i, -i) for i in range(10, 20)]
    assert postgres_database.query("SELECT id, version FROM copy_early ORDER BY id") == kept + new
    assert postgres_database.query("SELECT id, version FROM copy_late ORDER BY id") == new


def test_an_altered_table_is_not_read_again_if_the_job_file_says_so(pair: Pair, tmp_path: Path) -> None:
    copy = Copy(pair, tmp_path / "files", None)
    lose(pair, [copy], "TRUNCATE orders")
    with pytest.raises(LogPositionLostError) as caught:
        copy.run("sink.on_schema_change=evolve", "source.on_log_lost=stop")
    assert "set source.on_log_lost: resnapshot" in caught.value.remedy
    copy.run("sink.on_schema_change=evolve")
    copy.check()


@pytest.mark.every_server
def test_the_primary_was_restored_from_an_older_copy_before_its_standby_took_over(
    pair: Pair, postgres_database: Database, tmp_path: Path
) -> None:
    """By its timeline, the standby has all that most of the jobs have read. But it has other transactions there."""
    names = ("follows", "lost", "back", "joined")
    copies = [Copy(pair, tmp_path / name, postgres_database if name == "back" else None) for name in names]
    _, lost, back, joined = copies
    database, data = pair.database, pair.primary.data_folder
    assert data is not None
    for _ in range(2):
        for copy in copies:
            copy.run()
        database.execute(*UPDATE_ALL)
    pair.await_standby()
    pair.fall_behind()
    exchange_files(pair.primary, data, tmp_path / "data")
    database.execute(*LOST)
    for copy in copies:
        copy.run()
    write_log(database, rows=200_000)
    database.execute("UPDATE orders SET version = 9 WHERE id = 10")
    lost.run()
    epoch = Checkpoint.at(str(back.folder / "checkpoint")).committed_epoch() - 1
    roll_back(load_job_file(back.job), epoch, standby=True)
    joining = ("CREATE TABLE new (id int PRIMARY KEY)", "ALTER PUBLICATION shop ADD TABLE new")
    database.execute(*joining)
    die_at(joined.job, "tables.after_joined")

    exchange_files(pair.primary, tmp_path / "data", data)
    database.execute("UPDATE orders SET version = 5 WHERE id = 11", *joining)
    write_log(database, rows=20_000)
    pair.standby.start()
    pair.await_standby()
    pair.fail_over()
    pair.promoted.execute("UPDATE customers SET version = version + 1")
    for copy in copies:
        copy.run()
        assert "So the rows of all tables are read again" in copy.moved, copy.folder.name
        copy.check()


def exchange_files(server: Server, source: Path, copy: Path) -> None:
    """Copies the server's files while it is stopped."""
    server.stop()
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-a", source, copy], check=True)
    server.start()


def write_log(database: Database, *, rows: int) -> None:
    database.execute(f"CREATE TABLE unrelated AS SELECT generate_series(1, {rows})", "DROP TABLE unrelated")


@pytest.mark.every_server
def test_keys_that_only_the_server_can_write(pair: Pair, postgres_database: Database, tmp_path: Path) -> None:
    """Their texts in Arrow are no values of the server, or are others: those of bytes are written as escapes."""
    tables = {
        "days": ("date", "-infinity", "0044-03-15 BC", "20000-01-01", "infinity"),
        "times": ("timestamptz", "-infinity", "0044-03-15 12:00+00 BC", "20000-01-01 00:00+00", "infinity"),
        "hashes": ("bytea", "\\x00", "\\x41", "\\x5c783431", "\\xff"),
        "prices": ("numeric(9,2)", "1", "2", "3", "NaN"),
    }
    for table, (sql_type, *keys) in tables.items():
        rows = ", ".join(f"('{key}', 1)" for key in keys)
        pair.database.execute(f"CREATE TABLE {table} (key {sql_type} PRIMARY KEY, version int)")
        pair.database.execute(f"INSERT INTO {table} VALUES {rows}", f"ALTER PUBLICATION shop ADD TABLE {table}")
    copy = Copy(pair, tmp_path / "mirror", postgres_database)
    lose(pair, [copy], *(f"UPDATE {table} SET version = 2" for table in tables))
    assert copy.run() == ["stream"]
    assert (
        "4 keys of public.days, 4 keys of public.hashes, 4 keys of public.prices, 4 keys of public.times." in copy.moved
    )
    for table in tables:
        query = f"SELECT key::text, version FROM %s{table} ORDER BY key"
        assert postgres_database.query(query % "copy_") == pair.promoted.query(query % ""), table


WITHOUT_KEY = (
    "CREATE TABLE t (uid bigint, version int, note text)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "INSERT INTO t SELECT i % 150, 1, repeat('x', i % 90) FROM generate_series(1, 400) AS i",
    "CREATE TABLE p (uid bigint PRIMARY KEY, version int, note text) PARTITION BY RANGE (uid)",
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100) TO (200)",
    "INSERT INTO p SELECT i, 1, 'x' FROM generate_series(1, 150) AS i",
    "ALTER PUBLICATION shop ADD TABLE t, p",
)


@pytest.mark.every_server
@pytest.mark.parametrize(
    ("lost", "is_parked"),
    [
        pytest.param(("INSERT INTO t VALUES (7, 1, 'lost')", "DELETE FROM t WHERE uid = 3", *LOST), False, id="rows"),
        pytest.param(("TRUNCATE t", "INSERT INTO t VALUES (7, 1, 'lost')", "TRUNCATE p"), False, id="truncate"),
        pytest.param(("UPDATE p SET uid = uid + 110 WHERE uid = 50", "DELETE FROM p WHERE uid = 3"), False, id="moved"),
        pytest.param(
            ("CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300)", "INSERT INTO p VALUES (201, 1, 'lost')"),
            False,
            id="partition",
        ),
        pytest.param(("ALTER TABLE p DETACH PARTITION p2",), True, id="detached"),
        pytest.param(("TRUNCATE p2", "INSERT INTO p VALUES (120, 9, 'lost')"), True, id="emptied"),
    ],
)
def test_tables_without_a_key_and_partitions(
    pair: Pair, tmp_path: Path, lost: tuple[str, ...], *, is_parked: bool
) -> None:
    """If lost transactions changed them, their rows are read again. They come once."""
    pair.database.execute(*WITHOUT_KEY)
    copy = Copy(pair, tmp_path / "files", None)
    changes = ("sink.on_schema_change=evolve", "source.on_table_error=park")
    for _ in range(2):
        copy.run(*changes)
        pair.database.execute(*UPDATE_ALL)
    copy.run(*changes)
    pair.await_standby()
    pair.fall_behind()
    pair.database.execute(*lost)
    copy.run(*changes)
    pair.fail_over()
    pair.promoted.execute(
        *AFTERWARDS,
        "INSERT INTO t VALUES (9, 1, 'after'), (130, 2, 'after')",
        "DELETE FROM t WHERE uid = 4",
        "INSERT INTO p VALUES (190, 1, 'after')",
        "DELETE FROM p WHERE uid IN (4, 98, 149)",
    )
    copy.run(*changes)
    if is_parked:
        resnapshot(load_job_file(copy.job), [TableName("public", "p")])
        copy.run(*changes)
    check_all(copy)
    pair.promoted.execute(
        "UPDATE t SET version = 7 WHERE uid = 9", "UPDATE p SET uid = 98 WHERE uid = 190", *UPDATE_ALL
    )
    copy.run(*changes)
    check_all(copy)


def check_all(copy: Copy) -> None:
    copy.check()
    assert_keyless_copied(copy.folder, copy.pair.promoted)
    rows = {}
    for change in read_history(copy.folder / "out", "public", "p").to_pylist():
        if change["_change_type"] == "truncate":
            rows.clear()
        elif change["_change_type"] == "delete":
            rows.pop(change["uid"], None)
        else:
            rows[change["uid"]] = (change["version"], change["note"])
    found = copy.pair.promoted.query("SELECT uid, version, note FROM p")
    assert rows == {uid: (version, note) for uid, version, note in found}
