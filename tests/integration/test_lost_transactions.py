"""The source fails over to a replica that lacks the last transactions: only the rows that these changed are read again
(docs/adr/0073)."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.failover import (
    await_replica,
    lose_end_of_log,
    on,
    promote,
    replicated,
    reset,
    start_receiving,
    stop_receiving,
)
from tests.support.history import assert_mirrored, assert_newest_rows
from tests.support.jobs import source_of, write_workload_job
from tests.support.servers import Database, fresh_database
from tests.support.workload import UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.epoch import kept_cuts, read_parts
from tidemark.jobs.recovery import another_server
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.readers.log import touched_keys
from tidemark.state.checkpoint import codec
from tidemark.state.checkpoint.layout import Checkpoint, repair_file
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


class Copy:
    """The job, with what it told, and its copy: files, or tables of `target`."""

    def __init__(self, folder: Path, target: Database | None, pair: tuple[Server, Server]) -> None:
        self.folder, self.target, self.pair = folder, target, pair
        self.notes = Notes()

    def job(self, source: Database, **settings: Any) -> Path:
        return write_workload_job(
            self.folder, source_of(source, **({"on_log_lost": "resnapshot"} | settings)), self.target
        )

    def run(self, source: Database, *overrides: str) -> list[str]:
        return run_epochs(self.job(source), *overrides, notes=self.notes)

    def lose(
        self,
        source: Database,
        *statements: str,
        overrides: tuple[str, ...] = (),
        one_by_one: bool = False,
        then: Callable[[], None] | None = None,
    ) -> Database:
        """Lets the job read statements that the replica never gets, and promotes it. Returns the database there. `then`: is
        done before the job's last run on the primary."""
        self.run(source, *overrides)
        await_replica(*self.pair)
        stop_receiving(self.pair[1])
        for statement in statements:
            source.execute(statement)
            if one_by_one:
                self.run(source, *overrides)
        if then is not None:
            then()
        self.run(source, *overrides)
        promote(self.pair[1])
        return on(self.pair[1], source)

    @property
    def moved(self) -> str:
        (text,) = [facts["text"] for event, facts in self.notes.found if event == "moved"]
        return str(text)

    def check(self, source: Database) -> None:
        if self.target is None:
            assert_newest_rows(self.folder / "out", source)
        else:
            assert_mirrored(source, self.target)


@pytest.fixture(params=["files", "mirror"])
def copy(request: pytest.FixtureRequest, pair: tuple[Server, Server], tmp_path: Path) -> Copy:
    target = request.getfixturevalue("postgres_database") if request.param == "mirror" else None
    return Copy(tmp_path, target, pair)


@pytest.fixture
def files(pair: tuple[Server, Server], tmp_path: Path) -> Copy:
    return Copy(tmp_path, None, pair)


@pytest.mark.parametrize("own_pair", ["mariadb"], indirect=True)
def test_a_lost_transaction_began_before_the_last_one_that_is_left(source: Database, copy: Copy) -> None:
    """MariaDB's log has the times at which statements began, so they do not tell whether the replica has the same transactions
    as the job. The job goes on from an earlier position, at which they do."""
    primary, replica = copy.pair
    copy.run(source)
    source.execute(UPDATE_3)
    copy.run(source)
    long = threading.Thread(target=source.execute, args=("UPDATE orders SET version = 7 + SLEEP(4) WHERE id = 4",))
    long.start()
    source.execute("DO SLEEP(2)", "UPDATE order_lines SET version = 9 WHERE order_id = 2 AND line_no = 1")
    await_replica(primary, replica)
    stop_receiving(replica)
    long.join()
    copy.run(source)
    promote(replica)
    there = on(replica, source)
    there.execute(*AFTERWARDS)
    assert set(copy.run(there)) == {"stream"}
    assert f"1 key of {source.name}.order_lines, 1 key of {source.name}.orders." in copy.moved
    copy.check(there)
    there.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
    assert copy.run(there) == ["stream"]
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
def test_only_the_rows_that_lost_transactions_changed_are_read_again(source: Database, copy: Copy) -> None:
    there = copy.lose(source, *LOST)
    there.execute(*AFTERWARDS)
    assert set(copy.run(there)) == {"stream"}
    assert f"4 keys of {source.name}.order_lines, 6 keys of {source.name}.orders." in copy.moved
    copy.check(there)
    there.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
    assert copy.run(there) == ["stream"]
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
@pytest.mark.parametrize(
    "point",
    [
        "lost_transactions.read",
        "another_server.moved",
        "planner.after_plan",
        "repairs.emitted",
        "log.before_report",
        "sink.before_commit",
        "sink.after_commit",
        "driver.epoch_written",
    ],
)
def test_the_job_dies_on_its_way(source: Database, copy: Copy, point: str) -> None:
    there = copy.lose(source, *LOST)
    there.execute(*AFTERWARDS)
    die_at(copy.job(there), point, notes=copy.notes)
    there.execute("UPDATE orders SET version = version + 1 WHERE id IN (3, 5, 6)")
    assert set(copy.run(there)) <= {"stream"}
    if point != "another_server.moved":  # else the driver that died could not say it
        assert "6 keys of " in copy.moved
    copy.check(there)
    there.execute(*UPDATE_ALL)
    assert copy.run(there) == ["stream"]
    copy.check(there)


def test_transactions_that_changed_no_rows_of_the_job_do_not_matter(source: Database, files: Copy) -> None:
    source.execute("CREATE DATABASE t_other", "CREATE TABLE t_other.t (id INT PRIMARY KEY)")
    there = files.lose(source, "INSERT INTO t_other.t VALUES (1)")
    there.execute(*UPDATE_ALL)
    run_epochs(files.job(there, on_log_lost="stop"), notes=files.notes)
    assert "They changed no rows of the job's tables." in files.moved
    files.check(there)


@pytest.mark.servers_in_turn("own_pair")
def test_the_job_stops_if_the_job_file_says_so(source: Database, files: Copy) -> None:
    """Its remedy has the rows read again."""
    there = files.lose(source, *LOST)
    there.execute(*AFTERWARDS)
    with pytest.raises(LogPositionLostError, match="Only the other server had them") as caught:
        run_epochs(files.job(there, on_log_lost="stop"))
    assert caught.value.exit_code == 4
    assert "set source.on_log_lost: resnapshot, and run the job again: it reads the rows again" in caught.value.remedy
    assert set(run_epochs(files.job(there, on_log_lost="stop"), "source.on_log_lost=resnapshot")) == {"stream"}
    files.check(there)


ALL_ORDERS = "all rows of {}.orders ({})"


@pytest.mark.servers_in_turn("own_pair", "lost")
@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        pytest.param("UPDATE orders SET version = version + 1", "its keys were not noted", id="too many"),
        pytest.param("TRUNCATE orders", "its keys were not noted", id="truncate"),
        pytest.param("ALTER TABLE orders ADD COLUMN more INT", "its columns were changed", id="altered"),
    ],
)
def test_a_table_of_which_the_keys_are_not_known_is_read_again(
    source: Database, copy: Copy, monkeypatch: pytest.MonkeyPatch, lost: str, reason: str
) -> None:
    monkeypatch.setattr(touched_keys, "MAX_KEYS", 50)
    evolve = "sink.on_schema_change=evolve"
    touch = "UPDATE orders SET version = 9 WHERE id = 1"
    there = copy.lose(source, lost, touch, "DELETE FROM customers LIMIT 1", overrides=(evolve,))
    there.execute(*AFTERWARDS)
    assert "snapshot" in copy.run(there, evolve)
    assert ALL_ORDERS.format(source.name, reason) in copy.moved
    assert f"1 key of {source.name}.customers" in copy.moved
    assert "order_lines" not in copy.moved
    copy.check(there)
    there.execute(*UPDATE_ALL)
    assert copy.run(there, evolve) == ["stream"]
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
def test_the_job_dies_when_tables_have_left(source: Database, copy: Copy) -> None:
    there = copy.lose(source, *LOST, "TRUNCATE customers", overrides=("sink.on_schema_change=evolve",))
    there.execute(*AFTERWARDS)
    die_at(copy.job(there), "another_server.left")
    assert "snapshot" in copy.run(there)
    assert f"4 keys of {source.name}.order_lines, 6 keys of {source.name}.orders." in copy.moved
    copy.check(there)
    there.execute(*UPDATE_ALL)
    assert copy.run(there) == ["stream"]
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "is_kept")
@pytest.mark.parametrize("is_kept", [True, False])
def test_all_tables_are_read_again_if_nothing_is_known(
    source: Database, files: Copy, monkeypatch: pytest.MonkeyPatch, *, is_kept: bool
) -> None:
    """An earlier version made no note, or too many epochs were read since."""
    if is_kept:
        monkeypatch.setattr(read_parts, "is_known_elsewhere", lambda _: False)
    else:
        monkeypatch.setattr(kept_cuts, "KEPT_PLANS", 1)
    there = files.lose(source, *LOST, one_by_one=True)
    there.execute(*AFTERWARDS)
    assert "snapshot" in files.run(there)
    assert "So the rows of all tables are read again" in files.moved
    files.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
def test_the_keys_of_several_epochs_are_read_again(source: Database, copy: Copy) -> None:
    there = copy.lose(source, *LOST, "UPDATE orders SET version = 8 WHERE id IN (3, 10)", one_by_one=True)
    there.execute(*AFTERWARDS)
    assert set(copy.run(there)) == {"stream"}
    assert f"4 keys of {source.name}.order_lines, 7 keys of {source.name}.orders." in copy.moved
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
def test_a_table_that_was_read_meanwhile_is_read_again(source: Database, copy: Copy) -> None:
    def read_orders_again() -> None:
        resnapshot(load_job_file(copy.job(source)), [TableName(source.name, "orders")])

    there = copy.lose(source, *LOST, then=read_orders_again)
    there.execute(*AFTERWARDS)
    assert "snapshot" in copy.run(there)
    assert ALL_ORDERS.format(source.name, "its rows were being read") in copy.moved
    assert f"4 keys of {source.name}.order_lines, all" in copy.moved
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
@pytest.mark.parametrize("point", ["another_server.moved", "planner.after_plan"])
def test_the_new_server_is_lost_before_the_rows_are_written(source: Database, copy: Copy, point: str) -> None:
    """Their tables are read again as a whole. The first server has all that the second one had."""
    there = copy.lose(source, *LOST)
    die_at(copy.job(there), point)
    copy.notes.found.clear()
    assert "snapshot" in copy.run(source)
    assert "has all that the job has read" in copy.moved
    copy.check(source)
    source.execute(*UPDATE_ALL)
    assert copy.run(source) == ["stream"]
    copy.check(source)


@pytest.mark.servers_in_turn("own_pair", "epochs")
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_transactions_are_lost_during_the_first_load(source: Database, files: Copy, epochs: int) -> None:
    run_epochs(files.job(source), at_most=epochs)
    await_replica(*files.pair)
    stop_receiving(files.pair[1])
    source.execute(*LOST, *UPDATE_ALL)
    run_epochs(files.job(source), at_most=epochs)
    promote(files.pair[1])
    there = on(files.pair[1], source)
    there.execute(*AFTERWARDS)
    files.run(there)
    files.check(there)


@pytest.mark.every_server
def test_many_keys_are_read_again(source: Database, copy: Copy) -> None:
    """Neighbours by one statement. Texts are read one by one."""
    there = copy.lose(source, *UPDATE_ALL, "DELETE FROM orders WHERE id % 3 = 0", "DELETE FROM customers LIMIT 30")
    there.execute(*UPDATE_ALL)
    assert set(copy.run(there)) == {"stream"}
    assert "60 keys of" in copy.moved
    copy.check(there)


@pytest.mark.servers_in_turn("own_pair", "copy")
def test_a_job_that_was_rolled_back_has_more_in_its_copy_than_its_position_says(source: Database, copy: Copy) -> None:
    """The server has all up to the position to which the job was rolled back, and lacks what the copy has."""
    copy.run(source)
    source.execute(*UPDATE_ALL)
    copy.run(source)
    await_replica(*copy.pair)
    stop_receiving(copy.pair[1])
    source.execute(*LOST)
    copy.run(source)
    epoch = Checkpoint.at(str(copy.folder / "checkpoint")).committed_epoch() - 1
    roll_back(load_job_file(copy.job(source)), epoch, standby=True)
    promote(copy.pair[1])
    there = on(copy.pair[1], source)
    assert "snapshot" in copy.run(there)
    assert "The job was rolled back" in copy.moved
    copy.check(there)
    there.execute(*AFTERWARDS)
    assert copy.run(there) == ["stream"]
    copy.check(there)


class StoreAtMove(Notes):
    """Notes whether a file is in the checkpoint when the job has moved."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        super().__init__()
        self.checkpoint, self.name, self.seen = checkpoint, name, list[bool]()

    def note(self, event: str, **facts: Any) -> None:
        super().note(event, **facts)
        if event == "moved":
            self.seen.append(self.checkpoint.store.exists(self.name))


@pytest.mark.servers_in_turn("own_pair", "copy")
def test_a_driver_that_was_frozen_leaves_the_rows_that_another_one_has_read_since(
    source: Database, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has noted that the job moved, and another driver has taken the job over when it goes on."""
    there = copy.lose(source, *LOST)
    checkpoint, others = Checkpoint.at(str(copy.folder / "checkpoint")), repair_file(7, 1)

    def freeze(point: str) -> None:
        if point == "another_server.moved":
            checkpoint.store.create(others, b"rows")

    monkeypatch.setattr(another_server, "failpoint", freeze)
    copy.notes = notes = StoreAtMove(checkpoint, others)
    copy.run(there)
    assert notes.seen == [True]
    copy.check(there)


def transaction_of_another(source: Database) -> tuple[str, ...]:
    """Returns the statements that commit a transaction of another primary as a replica of it does, over a channel of its own.
    That one's clock is an hour ahead."""
    at = int(time.time()) + 3600
    if source.kind == "mysql":
        begin = f"SET gtid_next = '{uuid.UUID(int=4)}:1'", f"SET original_commit_timestamp = {at * 1_000_000}"
        end = "COMMIT", "SET gtid_next = 'AUTOMATIC'", "SET original_commit_timestamp = DEFAULT"
    else:
        begin = "SET gtid_domain_id = 4, server_id = 44, gtid_seq_no = 1", f"SET timestamp = {at}"
        end = (
            "COMMIT",
            "SET gtid_domain_id = DEFAULT, server_id = @@GLOBAL.server_id, gtid_seq_no = DEFAULT, timestamp = DEFAULT",
        )
    return *begin, "UPDATE orders SET version = 8 WHERE id = 9", *end


UPDATE_3, UPDATE_20 = (f"UPDATE orders SET version = version + 1 WHERE id = {id}" for id in (3, 20))


@pytest.mark.every_server
@pytest.mark.parametrize("is_rolled_back", [False, True])
@pytest.mark.parametrize("written", [2, 3])
def test_the_first_server_has_given_numbers_of_transactions_again(
    source: Database, copy: Copy, written: int, *, is_rolled_back: bool
) -> None:
    """It has lost the end of its log in a crash, and its replica got what came after. Or the job was rolled back before that:
    its copy has what was lost."""
    numbers_given_again(source, copy, written, is_rolled_back=is_rolled_back)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
@pytest.mark.parametrize("case", ["an epoch without transactions", "tag"])
def test_numbers_given_again_are_seen(source: Database, files: Copy, case: str) -> None:
    """After the last transaction that the job has read, its newest epoch had none. Or GTIDs have tags, which another kind of
    event of the log has."""
    tag = ("SET gtid_next = 'AUTOMATIC:from_elsewhere'",) if case == "tag" else ()
    numbers_given_again(source, files, 3, before=tag, after_read=() if tag else ("FLUSH BINARY LOGS",))


@pytest.mark.servers_in_turn("own_pair", "written")
@pytest.mark.parametrize("written", [2, 3])
def test_numbers_given_again_are_seen_whatever_the_clock_of_another_primary_says(
    source: Database, files: Copy, written: int
) -> None:
    """The other one's clock is an hour ahead, and its transaction is the last one of both logs."""
    numbers_given_again(source, files, written, another=transaction_of_another(source))


@pytest.mark.servers_in_turn("own_pair", "written")
@pytest.mark.parametrize("written", [2, 3])
def test_numbers_given_again_are_seen_by_a_job_of_an_earlier_version(
    source: Database, files: Copy, written: int
) -> None:
    """Its checkpoint has one time for all sources."""
    numbers_given_again(source, files, written, then=lambda: of_an_earlier_version(files.folder / "checkpoint"))


def of_an_earlier_version(checkpoint: Path) -> None:
    """Rewrites the positions of a checkpoint as they were before they noted a time for each source."""
    for file in (
        checkpoint / "job",
        *checkpoint.glob("plans/*"),
        *checkpoint.glob("logs/*"),
        *checkpoint.glob("joined/*"),
    ):
        header, body, _ = file.read_bytes().split(b"\n")
        value = json.loads(body, object_hook=_with_one_time)
        body = json.dumps(value).encode()
        file.unlink()
        file.write_bytes(codec._header(json.loads(header), body) + b"\n" + body + b"\n")


def _with_one_time(value: dict[str, Any]) -> dict[str, Any]:
    times = value.pop("times", None)
    if times is not None:
        value["last_at"] = max(int(time.partition("=")[2]) for time in times.split(",")) // 1_000_000
    return value


def test_numbers_given_again_are_seen_if_an_older_file_has_the_first_ones(source: Database, files: Copy) -> None:
    """When the job began, the newest file of the log had only transactions of another primary."""
    primary, replica = files.pair
    another = transaction_of_another(source)
    await_replica(primary, replica)
    stop_receiving(replica)
    source.execute(*[UPDATE_3] * 3, "FLUSH BINARY LOGS", *another)
    files.run(source)
    lose_end_of_log(primary, replica, f"UPDATE {source.name}.orders SET version = version - 3 WHERE id = 3")
    source.execute("DO SLEEP(2.1)", *[UPDATE_20] * 3, *another)
    start_receiving(replica)
    await_replica(primary, replica)
    promote(replica)
    there = on(replica, source)
    files.run(there)
    files.check(there)


@pytest.mark.servers_in_turn("own_pair", "is_flushed")
@pytest.mark.parametrize("is_flushed", [True, False])
def test_numbers_given_again_are_seen_by_a_job_that_has_only_read_rows(
    source: Database, files: Copy, *, is_flushed: bool
) -> None:
    """They were given before the job began, and again after that."""
    primary, replica = files.pair
    await_replica(primary, replica)
    stop_receiving(replica)
    source.execute(*[UPDATE_3] * 3, *(("FLUSH BINARY LOGS",) * 2 if is_flushed else ()))
    files.run(source)
    lose_end_of_log(primary, replica, f"UPDATE {source.name}.orders SET version = version - 3 WHERE id = 3")
    source.execute("DO SLEEP(2.1)", *[UPDATE_20] * 3)
    start_receiving(replica)
    await_replica(primary, replica)
    promote(replica)
    there = on(replica, source)
    files.run(there)
    files.check(there)


@pytest.mark.parametrize("own_pair", ["mysql"], indirect=True)
def test_numbers_given_again_are_seen_by_an_earlier_transaction_if_the_last_one_is_lost(
    source: Database, files: Copy
) -> None:
    """The new server has another transaction of the number before it, which is older: its clock was set back. The time of the
    last one alone would not tell."""
    primary, replica = files.pair
    files.run(source)
    await_replica(primary, replica)
    promote(replica)
    there = on(replica, source)
    ((server, executed),) = source.query("SELECT @@server_uuid, @@GLOBAL.gtid_executed")
    number, now_us = int(executed.rpartition("-")[2]) + 1, int(time.time() * 1_000_000)

    def commit(database: Database, number: int, seconds: int, statement: str) -> None:
        at = f"SET original_commit_timestamp = {now_us + seconds * 1_000_000}"
        database.execute(f"SET gtid_next = '{server}:{number}'", at, statement, "COMMIT", "SET gtid_next = 'AUTOMATIC'")

    commit(source, number, 60, UPDATE_3)
    files.run(source)
    commit(source, number + 1, 90, UPDATE_3)
    files.run(source)
    commit(there, number, 30, UPDATE_20)
    assert "snapshot" in files.run(there)
    assert "So the rows of all tables are read again" in files.moved
    files.check(there)


def numbers_given_again(
    source: Database,
    copy: Copy,
    written: int,
    *,
    is_rolled_back: bool = False,
    before: tuple[str, ...] = (),
    another: tuple[str, ...] = (),
    then: Callable[[], None] = lambda: None,
    after_read: tuple[str, ...] = (),
) -> None:
    primary, replica = copy.pair
    copy.run(source)
    source.execute(UPDATE_20)
    copy.run(source)
    await_replica(primary, replica)
    stop_receiving(replica)
    source.execute(*before, *[UPDATE_3] * 3, *another)
    copy.run(source)
    if after_read:
        source.execute(*after_read)
        copy.run(source)
    then()
    if is_rolled_back:
        epoch = Checkpoint.at(str(copy.folder / "checkpoint")).committed_epoch() - 1
        roll_back(load_job_file(copy.job(source)), epoch, standby=True)
    lose_end_of_log(primary, replica, f"UPDATE {source.name}.orders SET version = version - 3 WHERE id = 3")
    source.execute("DO SLEEP(2.1)", *before, *[UPDATE_20] * written, *another)
    start_receiving(replica)
    await_replica(primary, replica)
    promote(replica)
    there = on(replica, source)
    copy.run(there)
    copy.check(there)
    there.execute(*UPDATE_ALL)
    assert copy.run(there) == ["stream"]
    copy.check(there)
