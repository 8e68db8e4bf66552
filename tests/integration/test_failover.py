"""The source fails over to a replica: the job goes on there (docs/adr/0035)."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.failover import await_replica, follow, on, promote, replicated, reset, seed, stop_receiving
from tests.support.forwarder import forwarding
from tests.support.history import assert_copied, assert_mirrored, assert_newest_rows, read_history
from tests.support.jobs import running, source_of, write_job, write_workload_job
from tests.support.remedies import remedy_of
from tests.support.servers import Database, fresh_database
from tests.support.workload import UPDATE_ALL, Uids, Writers, create_tables
from tidemark.readers.log import touched_keys
from tidemark.readers.mysql import source as mysql_source
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.state.errors import LogPositionLostError, SourceUnavailableError
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def own_pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    with replicated(request.param) as servers:
        yield servers


@pytest.fixture
def pair(own_pair: tuple[Server, Server]) -> tuple[Server, Server]:
    """A primary and its replica."""
    reset(*own_pair)
    return own_pair


@pytest.fixture
def source(pair: tuple[Server, Server]) -> Iterator[Database]:
    """On the primary."""
    with fresh_database(pair[0]) as database:
        create_tables(database, rows=60, uids=Uids())
        yield database


def job_of(database: Database, folder: Path, target: Database | None = None, **source: Any) -> Path:
    return write_workload_job(folder, source_of(database, **({"on_log_lost": "stop"} | source)), target)


def fail_over(source: Database, pair: tuple[Server, Server]) -> Database:
    """Promotes the replica. Returns the database there."""
    await_replica(*pair)
    promote(pair[1])
    return on(pair[1], source)


def moved(notes: Notes) -> list[str]:
    return [facts["text"] for event, facts in notes.found if event == "moved"]


def is_copied(root: Path, source: Database) -> bool:
    try:
        assert_copied(root, source)
    except AssertionError:
        return False
    return True


def test_a_job_goes_on_at_the_promoted_replica_and_back(
    source: Database, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    primary, replica = pair
    run_epochs(job_of(source, tmp_path))
    source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0", "FLUSH BINARY LOGS", *UPDATE_ALL)
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL, "FLUSH BINARY LOGS", *UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path), notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", there)
    there.execute(*UPDATE_ALL)
    run_epochs(job_of(there, tmp_path))
    follow(primary, replica)
    await_replica(replica, primary)
    promote(primary)
    source.execute(*UPDATE_ALL)
    assert set(run_epochs(job_of(source, tmp_path))) == {"stream"}
    assert_copied(tmp_path / "out", source)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
def test_the_server_that_was_read_was_a_replica_whose_clock_is_behind(
    source: Database, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    """Its log has the time at which it committed a transaction itself, and the later one of the primary."""
    run_epochs(job_of(source, tmp_path))
    its_primary_committed_at = int(time.time() * 1_000_000) + 30_000_000
    for statement in UPDATE_ALL:
        source.execute(f"SET original_commit_timestamp = {its_primary_committed_at}", statement)
    run_epochs(job_of(source, tmp_path))
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path), notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", there)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
@pytest.mark.parametrize("between", [False, pytest.param(True, marks=pytest.mark.every_server)])
def test_the_other_server_has_committed_the_same_transactions_in_another_order(
    source: Database, pair: tuple[Server, Server], tmp_path: Path, *, between: bool
) -> None:
    """As replicas with replica_preserve_commit_order=OFF do, or several channels. `between`: there is a transaction of its own
    as well, which is newer."""
    primary, replica = pair
    run_epochs(job_of(source, tmp_path))
    await_replica(primary, replica)
    promote(replica)
    there = on(replica, source)
    ((server,),) = source.query("SELECT @@server_uuid")
    ((executed,),) = source.query("SELECT @@GLOBAL.gtid_executed")
    number = int(executed.rpartition("-")[2]) + 1
    now_us = int(time.time() * 1_000_000)

    def transaction(number: int, seconds: int, statement: str) -> tuple[str, ...]:
        at = f"SET original_commit_timestamp = {now_us + seconds * 1_000_000}"
        return f"SET gtid_next = '{server}:{number}'", at, statement, "COMMIT", "SET gtid_next = 'AUTOMATIC'"

    first = transaction(number, 60, "UPDATE orders SET version = version + 1 WHERE id = 1")
    second = transaction(number + 1, 30, "UPDATE orders SET version = version + 1 WHERE id = 2")
    source.execute(*first, *second)
    run_epochs(job_of(source, tmp_path))
    newer = f"SET original_commit_timestamp = {now_us + 90_000_000}"
    own = (newer, "CREATE DATABASE other", "SET original_commit_timestamp = DEFAULT") if between else ()
    there.execute(*second, *own, *first, *UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path), notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", there)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
@pytest.mark.parametrize("is_read", [False, True])
def test_the_log_was_rotated_after_a_transaction_of_a_primary_whose_clock_is_ahead(
    source: Database, pair: tuple[Server, Server], tmp_path: Path, *, is_read: bool
) -> None:
    """The other server has it in the file that it reads to find the place. `is_read`: the job has also read transactions from
    the newer file, which are older."""
    ahead = int(time.time() * 1_000_000) + 3_600_000_000
    source.execute(f"SET original_commit_timestamp = {ahead}", *UPDATE_ALL)
    source.execute("SET original_commit_timestamp = DEFAULT", "FLUSH BINARY LOGS", *UPDATE_ALL)
    run_epochs(job_of(source, tmp_path))
    if is_read:
        source.execute(*UPDATE_ALL)
        run_epochs(job_of(source, tmp_path))
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL)
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path), notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", there)


@pytest.fixture
def prepared(source: Database) -> Iterator[list[str]]:
    """Names of XA transactions of the test. What it leaves on the primary is rolled back."""
    names = [f"{source.name}-{name}" for name in "klm"]
    yield names
    source.execute(*(f"XA ROLLBACK '{name}'" for name in names))


def prepare(database: Database, xid: str, statement: str) -> None:
    """Leaves an XA transaction prepared."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        for each in (f"XA START '{xid}'", statement, f"XA END '{xid}'", f"XA PREPARE '{xid}'"):
            cursor.execute(each)


def test_xa_transactions_are_prepared_when_the_primary_dies(
    source: Database, pair: tuple[Server, Server], prepared: list[str], tmp_path: Path
) -> None:
    """They end on the promoted replica, whose log has their rows. The job has passed two of them before."""
    run_epochs(job_of(source, tmp_path))
    prepare(source, prepared[0], "UPDATE orders SET version = version + 1 WHERE id = 3")
    prepare(source, prepared[1], "DELETE FROM customers")
    source.execute("UPDATE orders SET version = version + 1 WHERE id = 4", "FLUSH BINARY LOGS")
    run_epochs(job_of(source, tmp_path))
    prepare(source, prepared[2], "DELETE FROM orders WHERE id = 5")
    there = fail_over(source, pair)
    there.execute("UPDATE orders SET version = version + 1 WHERE id = 7")
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path), notes=notes)) == {"stream"}
    assert ["has all that the job has read" in text for text in moved(notes)] == [True]
    assert_copied(tmp_path / "out", there)
    for end, name in zip(("COMMIT", "ROLLBACK", "COMMIT"), prepared, strict=True):
        there.execute(f"XA {end} '{name}'")
        assert set(run_epochs(job_of(there, tmp_path))) == {"stream"}
        assert_copied(tmp_path / "out", there)
    there.execute("UPDATE orders SET version = version + 1 WHERE id < 9")
    run_epochs(job_of(there, tmp_path))
    assert_copied(tmp_path / "out", there)


@pytest.mark.servers_in_turn("own_pair", "sink")
@pytest.mark.parametrize("sink", ["files", "mirror"])
@pytest.mark.parametrize(
    "point",
    ["planner.after_plan", "log.before_report", "sink.before_commit", "sink.after_commit", "driver.epoch_written"],
)
def test_an_epoch_is_not_committed_when_the_primary_dies(
    source: Database,
    pair: tuple[Server, Server],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    point: str,
    sink: str,
) -> None:
    """A files sink can't tell whether it has an epoch that was read: then all rows are read again."""
    target: Database | None = request.getfixturevalue("postgres_database") if sink == "mirror" else None
    run_epochs(job_of(source, tmp_path, target))
    source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
    die_at(job_of(source, tmp_path, target), point)
    source.execute(*UPDATE_ALL)
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL, "DELETE FROM customers WHERE code LIKE '%3'")
    is_unknown = sink == "files" and point in {"sink.before_commit", "sink.after_commit", "driver.epoch_written"}
    if is_unknown:
        with pytest.raises(LogPositionLostError, match="perhaps not written") as caught:
            run_epochs(job_of(there, tmp_path, target))
        assert "set source.on_log_lost: resnapshot" in caught.value.remedy
    policy = "resnapshot" if is_unknown else "stop"
    phases = run_epochs(job_of(there, tmp_path, target, on_log_lost=policy))
    assert ("snapshot" in phases) == is_unknown
    for _ in range(2):
        if target is None:
            assert_copied(tmp_path / "out", there)
        else:
            assert_mirrored(there, target)
        there.execute(*UPDATE_ALL)
        assert run_epochs(job_of(there, tmp_path, target, on_log_lost=policy)) == ["stream"]


@pytest.mark.servers_in_turn("own_pair", "epochs")
@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("point", ["", "another_server.left", "tables.before_joined", "tables.after_joined"])
def test_the_primary_dies_during_the_first_load(
    source: Database,
    pair: tuple[Server, Server],
    tmp_path: Path,
    epochs: int,
    point: str,
) -> None:
    """Tables whose rows are not all read are read again: watermarks belong to their server."""
    uids = Uids()
    uids.take(10_000)  # those of `create_tables`
    with Writers(source, uids, count=2, seed=epochs, pause_seconds=0.02):
        run_epochs(job_of(source, tmp_path), at_most=epochs)
    there = fail_over(source, pair)
    if point:
        die_at(job_of(there, tmp_path), point)
    with Writers(there, uids, count=2, seed=epochs + 10, pause_seconds=0.02):
        run_epochs(job_of(there, tmp_path))
    run_epochs(job_of(there, tmp_path))
    assert_copied(tmp_path / "out", there)


def test_a_replica_that_lacks_what_was_read(source: Database, pair: tuple[Server, Server], tmp_path: Path) -> None:
    """Transactions that only the dead primary had are in the copy. So their rows are read again, if the job file says so."""
    primary, replica = pair
    run_epochs(job_of(source, tmp_path))
    await_replica(primary, replica)
    stop_receiving(replica)
    source.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0", "FLUSH BINARY LOGS", *UPDATE_ALL)
    run_epochs(job_of(source, tmp_path))
    promote(replica)
    there = on(replica, source)
    there.execute("DELETE FROM customers WHERE code LIKE '%3'")
    for _ in range(2):
        with pytest.raises(LogPositionLostError, match="Only the other server had them") as caught:
            run_epochs(job_of(there, tmp_path))
        assert caught.value.exit_code == 4
        assert "set source.on_log_lost: resnapshot" in caught.value.remedy
    notes = Notes()
    run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), notes=notes)
    assert ["Only the other server had them" in text for text in moved(notes)] == [True]
    assert_newest_rows(tmp_path / "out", there)
    there.execute(*UPDATE_ALL)
    assert run_epochs(job_of(there, tmp_path)) == ["stream"]
    assert_newest_rows(tmp_path / "out", there)


def test_a_replica_that_lacks_what_was_read_catches_up(
    source: Database, pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mysql_source, "REPLICA_SECONDS", 1)
    primary, replica = pair
    run_epochs(job_of(source, tmp_path))
    await_replica(primary, replica)
    stop_receiving(replica)
    source.execute(*UPDATE_ALL)
    run_epochs(job_of(source, tmp_path))
    there = on(replica, source)
    remedy = remedy_of(job_of(there, tmp_path), SourceUnavailableError)
    assert remedy == "Wait until it has caught up, or connect to the server that was promoted."
    there.server.connect().cursor().execute("START REPLICA" if primary.kind == "mysql" else "START SLAVE")
    assert fail_over(source, pair) == there
    for _ in range(2):
        there.execute(*UPDATE_ALL)
        assert run_epochs(job_of(there, tmp_path)) == ["stream"]
        assert_copied(tmp_path / "out", there)


def test_a_failover_that_is_not_over_yet(source: Database, pair: tuple[Server, Server], tmp_path: Path) -> None:
    """The address leads to a replica that accepts no writes, while the job runs."""
    primary, replica = pair
    with forwarding(primary) as address:
        job = job_of(source, tmp_path)
        url = f"source.url={primary.url.replace(f':{primary.port}', f':{address.port}')}"
        run_epochs(job, url)
        await_replica(primary, replica)
        source.execute(*UPDATE_ALL)

        class Moving(Notes):
            def note(self, event: str, **facts: Any) -> None:
                if event == "resumed":
                    address.server = replica

        with pytest.raises(SourceUnavailableError) as caught:
            run_epochs(job, url, "reconnect.attempts=0", notes=Moving())
        assert caught.value.remedy == (
            "Run the job again once the failover is over: it continues. Or name the job's server in source.url."
        )
        assert run_epochs(job) == ["stream"]  # that server is there still
        assert_copied(tmp_path / "out", source)
        there = fail_over(source, pair)
        there.execute(*UPDATE_ALL)
        assert run_epochs(job, url) == ["stream"]
        assert_copied(tmp_path / "out", there)


@pytest.mark.servers_in_turn("own_pair")
@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("touches", [False, True])
def test_a_replica_with_transactions_of_its_own(
    source: Database, pair: tuple[Server, Server], tmp_path: Path, *, touches: bool, flush: bool
) -> None:
    """Such as accounts that were created there. They don't matter, unless they changed tables of the job: then the rows that
    they changed are read again."""
    _, replica = pair
    await_replica(*pair)
    there = on(replica, source)
    there.execute("CREATE DATABASE IF NOT EXISTS t_other", "CREATE TABLE t_other.t (id INT PRIMARY KEY)")
    row = "INSERT INTO orders (id, uid, version) VALUES (1000000, 9999, 1)"
    there.execute(row if touches else "INSERT INTO t_other.t VALUES (1)")
    if flush:
        there.execute("FLUSH BINARY LOGS")
    source.execute(*UPDATE_ALL)
    run_epochs(job_of(source, tmp_path))
    source.execute("UPDATE customers SET version = version + 1")
    assert fail_over(source, pair) == there
    there.execute("UPDATE orders SET version = version + 1")
    if touches:
        with pytest.raises(LogPositionLostError, match="change the job's tables"):
            run_epochs(job_of(there, tmp_path))
    notes = Notes()
    policy = "resnapshot" if touches else "stop"
    assert set(run_epochs(job_of(there, tmp_path, on_log_lost=policy), notes=notes)) == {"stream"}
    assert [f"read again: 1 key of {source.name}.orders." in text for text in moved(notes)] == [touches]
    assert ["lacks the changes that the job has not read" in text for text in moved(notes)] == [touches]
    (assert_newest_rows if touches else assert_copied)(tmp_path / "out", there)


@pytest.mark.servers_in_turn("own_pair", "own")
@pytest.mark.parametrize(
    ("own", "reason"),
    [
        pytest.param("TRUNCATE orders", "its keys were not noted", id="truncate"),
        pytest.param("ALTER TABLE orders ADD COLUMN more INT", "its columns were changed", id="altered"),
    ],
)
def test_a_replica_with_transactions_of_its_own_of_which_the_keys_are_not_known(
    source: Database, pair: tuple[Server, Server], tmp_path: Path, own: str, reason: str
) -> None:
    """Only their table is read again."""
    run_epochs(job_of(source, tmp_path))
    await_replica(*pair)
    there = on(pair[1], source)
    there.execute(own, "DELETE FROM customers LIMIT 1")
    source.execute("UPDATE order_lines SET version = version + 1")
    run_epochs(job_of(source, tmp_path))
    assert fail_over(source, pair) == there
    there.execute(*UPDATE_ALL)
    notes, evolve = Notes(), "sink.on_schema_change=evolve"
    assert "snapshot" in run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), evolve, notes=notes)
    (text,) = moved(notes)
    assert f"1 key of {source.name}.customers, all rows of {source.name}.orders ({reason})." in text
    assert "order_lines" not in text
    assert_newest_rows(tmp_path / "out", there)
    there.execute(*UPDATE_ALL)
    assert run_epochs(job_of(there, tmp_path), evolve) == ["stream"]
    assert_newest_rows(tmp_path / "out", there)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
def test_each_table_has_as_many_keys_of_transactions_of_its_own(
    source: Database, pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(touched_keys, "MAX_KEYS", 50)
    run_epochs(job_of(source, tmp_path))
    await_replica(*pair)
    there = on(pair[1], source)
    there.execute("UPDATE orders SET version = version + 1 WHERE id <= 20", "DELETE FROM customers LIMIT 35")
    source.execute("UPDATE order_lines SET version = version + 1 WHERE order_id = 2")
    run_epochs(job_of(source, tmp_path))
    assert fail_over(source, pair) == there
    notes = Notes()
    assert set(run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), notes=notes)) == {"stream"}
    (text,) = moved(notes)
    assert f"35 keys of {source.name}.customers, 20 keys of {source.name}.orders." in text
    assert_newest_rows(tmp_path / "out", there)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
def test_tables_of_which_the_keys_are_not_known_do_not_let_the_log_be_read_from_its_start(
    source: Database, pair: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The keys that were noted before stay noted."""
    run_epochs(job_of(source, tmp_path))
    await_replica(*pair)
    there = on(pair[1], source)
    there.execute("DELETE FROM order_lines WHERE order_id = 3", "TRUNCATE customers")
    there.execute("ALTER TABLE orders ADD COLUMN more INT", "DELETE FROM order_lines WHERE order_id = 4")
    source.execute("UPDATE order_lines SET version = version + 1 WHERE order_id = 2")
    run_epochs(job_of(source, tmp_path))
    assert fail_over(source, pair) == there
    notes, evolve, starts, read = Notes(), "sink.on_schema_change=evolve", list[str](), LogReader.read

    def noting(reader: LogReader, log_range: LogRange, *, skip: GtidSet | None = None, **options: Any) -> Any:
        if skip is not None and reader.options.reconnect_attempts is not None and not options:
            starts.append(str(log_range.start))
        return read(reader, log_range, skip=skip, **options)

    monkeypatch.setattr(LogReader, "read", noting)
    assert "snapshot" in run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), evolve, notes=notes)
    (text,) = moved(notes)
    assert f"8 keys of {source.name}.order_lines, all rows of {source.name}.customers" in text
    assert f"all rows of {source.name}.orders" in text
    assert len(set(starts)) == len(starts) > 1, starts
    assert_newest_rows(tmp_path / "out", there)


@pytest.mark.servers_in_turn("own_pair")
def test_a_replica_with_transactions_of_its_own_that_lacks_what_was_read(
    source: Database, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    """The rows are read again that either of them changed."""
    _, replica = pair
    run_epochs(job_of(source, tmp_path))
    await_replica(*pair)
    there = on(replica, source)
    there.execute("DELETE FROM customers LIMIT 1")
    source.execute("UPDATE order_lines SET version = version + 1")
    run_epochs(job_of(source, tmp_path))
    await_replica(*pair)
    stop_receiving(replica)
    source.execute(
        "UPDATE orders SET version = 9 WHERE id IN (3, 4)", "INSERT INTO orders (uid, version) VALUES (7, 1)"
    )
    run_epochs(job_of(source, tmp_path))
    promote(replica)
    there.execute("UPDATE orders SET version = 10 WHERE id = 4")
    notes = Notes()
    with pytest.raises(LogPositionLostError, match="Only the other server had them"):
        run_epochs(job_of(there, tmp_path))
    assert set(run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"), notes=notes)) == {"stream"}
    (text,) = moved(notes)
    assert "Only the other server had them. Before the last one that the job has read, its log has transactions" in text
    assert f"read again: 1 key of {source.name}.customers, 3 keys of {source.name}.orders." in text
    assert_newest_rows(tmp_path / "out", there)
    there.execute(*UPDATE_ALL)
    assert run_epochs(job_of(there, tmp_path)) == ["stream"]
    assert_newest_rows(tmp_path / "out", there)


def test_a_transaction_of_its_own_after_what_was_read_is_followed(
    source: Database, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    run_epochs(job_of(source, tmp_path))
    await_replica(*pair)
    there = on(pair[1], source)
    there.execute("DELETE FROM orders WHERE id = 5", "UPDATE customers SET version = version + 1")
    source.execute("UPDATE order_lines SET version = version + 1")
    fail_over(source, pair)
    run_epochs(job_of(there, tmp_path))
    assert_copied(tmp_path / "out", there)


def test_a_stranger_is_refused(source: Database, pair: tuple[Server, Server], tmp_path: Path) -> None:
    run_epochs(job_of(source, tmp_path))
    reset(pair[1], pair[0])
    there = on(pair[1], source)
    there.server.connect().cursor().execute(f"CREATE DATABASE {source.name}")
    create_tables(there, rows=10, uids=Uids())
    with pytest.raises(LogPositionLostError, match="Only the other server had them") as caught:
        run_epochs(job_of(there, tmp_path, on_log_lost="resnapshot"))
    assert caught.value.exit_code == 4
    assert "on_log_lost" not in caught.value.remedy


def test_a_job_without_rows_goes_on(source: Database, pair: tuple[Server, Server], tmp_path: Path) -> None:
    job = job_of(source, tmp_path)
    run_epochs(job)
    source.execute(*UPDATE_ALL)
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL)
    assert run_epochs(job_of(there, tmp_path), "mode=incremental") == ["stream"]
    assert_copied(tmp_path / "out", there)


def test_a_replica_that_was_made_from_a_backup(source: Database, pair: tuple[Server, Server], tmp_path: Path) -> None:
    """Its log starts after the backup's transactions, which it has. Back at the primary, they are known."""
    primary, replica = pair
    await_replica(*pair)
    seed(replica, primary)
    source.execute(*UPDATE_ALL)
    run_epochs(job_of(source, tmp_path))
    source.execute(*UPDATE_ALL, "FLUSH BINARY LOGS", *UPDATE_ALL)
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL, "FLUSH BINARY LOGS", *UPDATE_ALL)
    assert set(run_epochs(job_of(there, tmp_path))) == {"stream"}
    follow(primary, replica)
    await_replica(replica, primary)
    promote(primary)
    source.execute(*UPDATE_ALL)
    assert set(run_epochs(job_of(source, tmp_path))) == {"stream"}
    assert_copied(tmp_path / "out", source)


def test_a_job_that_started_in_a_file_without_transactions(
    source: Database, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    source.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    run_epochs(job_of(source, tmp_path))
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL)
    assert set(run_epochs(job_of(there, tmp_path))) == {"stream"}
    assert_copied(tmp_path / "out", there)


@pytest.mark.parametrize("key", ["timestamp", "gtid"])
def test_a_job_that_started_inside_the_log(
    source: Database, pair: tuple[Server, Server], tmp_path: Path, key: str
) -> None:
    await_replica(*pair)
    variable = "gtid_executed" if pair[0].kind == "mysql" else "gtid_binlog_pos"
    query = (
        "SELECT DATE_ADD(UTC_TIMESTAMP(), INTERVAL 1 SECOND)" if key == "timestamp" else f"SELECT @@GLOBAL.{variable}"
    )
    [(start,)] = source.query(query)
    while key == "timestamp" and source.query("SELECT UTC_TIMESTAMP()")[0][0] < start:
        time.sleep(0.05)

    def job(database: Database) -> Path:
        sink = {"type": "files", "path": str(tmp_path / "out")}
        log = {"start": {key: f"{start}Z" if key == "timestamp" else start}}
        return write_job(tmp_path, mode="incremental", source=source_of(database), log=log, sink=sink)

    source.execute(*UPDATE_ALL)
    run_epochs(job(source))
    there = fail_over(source, pair)
    there.execute(*UPDATE_ALL)
    run_epochs(job(there))
    history = read_history(tmp_path / "out", source.schema, "orders")
    assert history.column("version").to_pylist() == [2] * 60 + [3] * 60


def test_a_running_job_goes_on_when_the_primary_is_killed(
    source: Database, pair: tuple[Server, Server], tmp_path: Path
) -> None:
    primary, replica = pair
    uids = Uids()
    uids.take(10_000)
    with forwarding(primary) as forwarder:
        url = source.server.url.replace(f":{primary.port}", f":{forwarder.port}")
        job = write_job(
            tmp_path,
            trigger="200ms",
            source=source_of(source, url=url),
            sink={"type": "files", "path": str(tmp_path / "out")},
            reconnect={"attempts": 60, "max_delay_seconds": 1},
        )
        with running(job) as process:
            process.wait_until(lambda: any(event.get("phase") == "stream" for event in process.events()))
            with Writers(source, uids, count=1, seed=1, pause_seconds=0.02) as writers:
                process.wait_until(lambda: writers.transactions > 50)
            await_replica(primary, replica)
            primary.kill()
            forwarder.server = replica
            try:
                promote(replica)
                there = on(replica, source)
                with Writers(there, uids, count=1, seed=2, pause_seconds=0.02):
                    process.wait_until(lambda: any(event["event"] == "moved" for event in process.events()))
                there.execute(*UPDATE_ALL)
                process.wait_until(lambda: is_copied(tmp_path / "out", there))
                process.popen.send_signal(signal.SIGINT)
                assert process.wait() == 130
            finally:
                primary.start()
        assert_copied(tmp_path / "out", there)
