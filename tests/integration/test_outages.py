"""Servers that are away for longer than some attempts: every connection waits as the job file's `reconnect` says."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from devtools.server import Server
from devtools.servers import start_server
from tests.support.certificates import write_postgres_file
from tests.support.change_parts import INSERT, ORDERS, SCHEMAS, log_part, snapshot_part
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import BY_SPARK, run_to_end, source_of, write_job
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import TEMPLATE
from tidemark.conf import reconnect as reconnecting
from tidemark.conf.endpoint import parse_endpoint
from tidemark.conf.load import load_job_file
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.jobs.monitoring import events
from tidemark.jobs.sources import find_source
from tidemark.jobs.spark.outages import Outage, TaskOutages
from tidemark.jobs.startup import HeldJob, hold_job
from tidemark.jobs.tables.job_tables import first_job_state
from tidemark.readers import lease as leasing
from tidemark.readers.mysql.source import MySqlServer
from tidemark.readers.postgres.source import find_postgres
from tidemark.readers.source import SourceServer
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import JobIdentity, ReadOnlyError
from tidemark.state.errors import (
    JobHeldError,
    LogPositionLostError,
    SinkError,
    SinkUnavailableError,
    SourceUnavailableError,
)
from tidemark.state.job_state import JobState
from tidemark.state.log_range import LogRange
from tidemark.state.position import WalPosition
from tidemark.state.split import KeyRange, Split

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(114)]

AWAY = AT_START.attempts + 4
"""Failed attempts before a server is back. Formerly a connection was given up after five."""

Act = Callable[[], object]


@pytest.fixture
def during(monkeypatch: pytest.MonkeyPatch) -> Callable[[Act], list[float]]:
    """Arranges that something is done after AWAY delays between attempts. Returns the delays."""

    def arrange(act: Act) -> list[float]:
        made: list[float] = []

        def wait(seconds: float) -> None:
            made.append(seconds)
            if len(made) == AWAY:
                act()

        monkeypatch.setattr(reconnecting, "time", SimpleNamespace(sleep=wait, monotonic=time.monotonic))
        return made

    return arrange


# The source


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with start_server("postgres") as server:
        yield server


@pytest.fixture
def source(own_server: Server) -> Iterator[Database]:
    assert own_server.process is not None
    if own_server.process.exit_code() is not None:  # a test failed before it started the server again
        own_server.start()
    with fresh_database(own_server) as database:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
        yield database


def opened(database: Database, folder: Path, *settings: str) -> tuple[SourceServer, JobState]:
    job = load_job_file(write_job(folder, source=source_of(database), sink={"type": "console"}), settings)
    with find_postgres(job, needs_key=False) as found:
        state = first_job_state(job, found)
        return found.server(state), state


def plans(server: SourceServer, state: JobState) -> Act:
    access = server.planner_access(state)
    assert access.log_end()
    return access.log_end


def reads_a_split(server: SourceServer, state: JobState) -> Act:
    (schema,) = state.schemas
    reader = server.split_reading([schema], "job").__enter__()
    split = Split(1, schema.table, schema.version, schema.key, KeyRange(None, None))

    def read() -> None:
        assert reader.read(split, schema, state.start).rows["v"].to_pylist() == ["a"]

    read()
    return read


def reads_the_log(server: SourceServer, state: JobState) -> Act:
    end = server.planner_access(state).log_end()
    assert isinstance(end, WalPosition)

    def read() -> None:
        assert list(server.log_reading(state.schemas).read(LogRange(state.start, end))) == []

    return read


@pytest.mark.parametrize("work", [plans, reads_a_split, reads_the_log])
def test_a_long_restart_of_postgres_is_waited_for_and_told(
    work: Callable[[SourceServer, JobState], Act],
    source: Database,
    during: Callable[[Act], list[float]],
    tmp_path: Path,
) -> None:
    go_on = work(*opened(source, tmp_path))
    made = during(source.server.start)
    source.server.kill()
    told, notes = events.Notes(), Notes()
    with events.told_outages(told):
        go_on()
    told.pass_on(notes)
    assert len(made) >= AWAY
    began, ended = notes.found
    assert began[0] == "unreachable"
    assert began[1]["server"] == f"the source 127.0.0.1:{source.server.port}"
    assert began[1]["attempts"] == 60
    assert ended == ("reachable", {"server": began[1]["server"], "seconds": ended[1]["seconds"]})


@pytest.mark.parametrize("work", [plans, reads_a_split, reads_the_log])
def test_a_postgres_that_stays_away_ends_the_run_with_7(
    work: Callable[[SourceServer, JobState], Act],
    source: Database,
    during: Callable[[Act], list[float]],
    tmp_path: Path,
) -> None:
    go_on = work(*opened(source, tmp_path, "reconnect.attempts=2"))
    made = during(source.server.start)
    source.server.kill()
    with pytest.raises(SourceUnavailableError, match=r"in 3 attempts.*run the job again: it continues") as caught:
        go_on()
    assert caught.value.exit_code == 7
    assert len(made) == 2
    source.server.start()


# A failover of the source


def become_standby(database: Database) -> Act:
    """Makes the server a standby, as one that answers at the primary's address during a failover. Returns the end of that."""
    with contextlib.closing(database.connect()) as connection, connection.cursor() as cursor:
        write_postgres_file(cursor, "standby.signal", "")
    database.server.restart()

    def become_primary() -> None:
        database.execute("COPY (SELECT 1) TO PROGRAM 'cat > /dev/null; rm standby.signal'")
        database.server.restart()

    return become_primary


@pytest.mark.parametrize("work", [plans, reads_a_split, reads_the_log])
def test_a_standby_that_answers_is_waited_for_and_told(
    work: Callable[[SourceServer, JobState], Act],
    source: Database,
    during: Callable[[Act], list[float]],
    tmp_path: Path,
) -> None:
    go_on = work(*opened(source, tmp_path))
    made = during(become_standby(source))
    told, notes = events.Notes(), Notes()
    with events.told_outages(told):
        go_on()
    told.pass_on(notes)
    assert len(made) >= AWAY
    assert [event for event, _ in notes.found] == ["unreachable", "reachable"]
    assert "it is a standby" in notes.found[0][1]["cause"]


def test_a_source_that_stays_a_standby_ends_the_run_with_7(
    source: Database, during: Callable[[Act], list[float]], tmp_path: Path
) -> None:
    server, state = opened(source, tmp_path, "reconnect.attempts=2")
    works = [work(server, state) for work in (plans, reads_a_split, reads_the_log)]
    job = load_job_file(tmp_path / "job.yaml")
    with hold_job(job, Notes()):
        pass
    become_primary = become_standby(source)
    made = during(lambda: None)
    for number, go_on in enumerate(works, 1):
        with pytest.raises(SourceUnavailableError, match=r"as a standby in 3 attempts.*Run the job again") as caught:
            go_on()
        assert (caught.value.exit_code, len(made)) == (7, 2 * number)
    lags = load_job_file(tmp_path / "job.yaml", ["source.tables=[public.t, public.not_there_yet]"])
    for now in (job, lags):
        with pytest.raises(SourceUnavailableError, match="The server is a standby"), hold_job(now, Notes()):
            pass
    become_primary()
    with hold_job(job, Notes()):
        pass


def test_a_read_only_server_that_answers_instead_of_mariadb_is_waited_for_and_told(
    during: Callable[[Act], list[float]], tmp_path: Path
) -> None:
    """MariaDB's server_id tells servers apart."""
    with start_server("mariadb") as server, fresh_database(server) as source:
        source.execute("CREATE TABLE t (id INT PRIMARY KEY, v TEXT)", "INSERT INTO t VALUES (1, 'a')")
        path = write_job(tmp_path, source=source_of(source), sink={"type": "console"})
        job = load_job_file(path)
        with find_source(job) as found:
            state = first_job_state(job, found)
            job_server = found.server(state)
        assert isinstance(job_server, MySqlServer)
        (schema,) = state.schemas
        ((own_id,),) = source.query("SELECT @@server_id")
        split = Split(1, schema.table, schema.version, schema.key, KeyRange(None, None))
        source.execute("SET GLOBAL server_id = 4711", "SET GLOBAL read_only = ON")
        made = during(lambda: source.execute(f"SET GLOBAL server_id = {own_id}", "SET GLOBAL read_only = OFF"))
        told, notes = events.Notes(), Notes()
        with events.told_outages(told), job_server.split_reading([schema], "job") as reader:
            assert reader.read(split, schema, state.start).rows["v"].to_pylist() == ["a"]
        told.pass_on(notes)
        assert len(made) == AWAY
        assert [event for event, _ in notes.found] == ["unreachable", "reachable"]
        assert "(server_id 4711), and accepts no writes" in notes.found[0][1]["cause"]
        source.execute("SET GLOBAL server_id = 4711")  # the failover has ended there: it accepts writes
        with pytest.raises(LogPositionLostError, match="the job's positions belong to"):
            job_server.planner_access(state).log_end()
        source.execute("SET GLOBAL read_only = ON")
        made = during(lambda: None)
        soon = load_job_file(path, ["reconnect.attempts=2"])
        with pytest.raises(SourceUnavailableError, match=r"asked 3 times: another server answers \(server_id 4711\)"):
            dataclasses.replace(job_server, job=soon).planner_access(state).log_end()
        assert len(made) == 2


# The lease


def held_after(held: HeldJob, done: Callable[[], bool], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        held.require_lease()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_lease_outlives_a_long_outage(source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing, "PING_SECONDS", 0.05)
    monkeypatch.setattr(leasing, "REACQUIRE_SECONDS", 5.0)
    monkeypatch.setattr(leasing, "PROOF_SECONDS", 1.0)
    path = write_job(tmp_path, source=source_of(source), sink={"type": "console"})
    job, told, notes = load_job_file(path, ["reconnect.max_delay_seconds=0.2"]), events.Notes(), Notes()

    def said(event: str) -> bool:
        told.pass_on(notes)
        return any(name == event for name, _ in notes.found)

    with hold_job(job, notes) as held, events.told_outages(told):
        source.server.kill()
        held_after(held, lambda: said("unreachable"))
        ends = time.monotonic() + 3.0
        held_after(held, lambda: time.monotonic() > ends)
        source.server.start()
        held_after(held, lambda: said("reachable"))
        with pytest.raises(JobHeldError), hold_job(job, notes):
            pass
        held.require_lease()


def test_a_lease_whose_source_stays_away_ends_the_run_with_7(
    source: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leasing, "PING_SECONDS", 0.05)
    path = write_job(tmp_path, source=source_of(source), sink={"type": "console"})
    job = load_job_file(path, ["reconnect={attempts: 2, max_delay_seconds: 0.1}"])
    with hold_job(job, Notes()) as held:
        source.server.kill()
        with pytest.raises(SourceUnavailableError, match="in 3 attempts"):
            held_after(held, lambda: False)
    source.server.start()


# The target

ROW = (1, "Ada", None, 1, None)


def mirror_in(database: Database, policy: Reconnect = AT_START) -> tuple[MirrorSink, JobIdentity]:
    sink, job = (
        MirrorSink(parse_endpoint(database.url), TEMPLATE, None, "mysql", reconnect=policy),
        JobIdentity("u", "job"),
    )
    sink.prepare(job, [ORDERS])
    return sink, job


def write(sink: MirrorSink, job: JobIdentity, items: Any) -> None:
    list(sink.writer(job).write(items, SCHEMAS))


def count(database: Database) -> int:
    ((found,),) = database.query("SELECT count(*) FROM tidemark_ledger")
    return int(found)


@pytest.fixture(params=["postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.every_server)])
def target(request: pytest.FixtureRequest) -> Iterator[Database]:
    with start_server(request.param) as server, fresh_database(server) as database:
        yield database


def test_a_target_that_is_away_is_waited_for_and_told(target: Database, during: Callable[[Act], list[float]]) -> None:
    sink, job = mirror_in(target, Reconnect())
    made, told, notes = during(target.server.start), events.Notes(), Notes()
    target.server.kill()
    with events.told_outages(told):
        write(sink, job, snapshot_part(1, 1, ORDERS, [ROW]))
    told.pass_on(notes)
    assert len(made) >= AWAY
    assert [event for event, _ in notes.found] == ["unreachable", "reachable"]
    assert notes.found[0][1]["server"] == f"the target 127.0.0.1:{target.server.port}"
    assert count(target) == 1


def test_a_target_that_stays_away_ends_the_run_with_7(target: Database, during: Callable[[Act], list[float]]) -> None:
    sink, job = mirror_in(target, Reconnect(attempts=2))
    made = during(target.server.start)
    target.server.kill()
    with pytest.raises(SinkUnavailableError, match=r"tried 3 times\. .*run the job again: it continues") as caught:
        write(sink, job, snapshot_part(1, 1, ORDERS, [ROW]))
    assert (caught.value.exit_code, len(made)) == (7, 2)
    with pytest.raises(SinkUnavailableError):
        sink.check([ORDERS])
    target.server.start()
    write(sink, job, snapshot_part(1, 1, ORDERS, [ROW]))  # the remedy
    assert count(target) == 1


def deny_writes(database: Database) -> Act:
    """Makes the target like one whose failover is under way. Returns the end of that."""
    server: Server = database.server
    if database.kind == "postgres":
        database.execute(
            "CREATE OR REPLACE FUNCTION deny() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION "
            "'cannot execute INSERT in a read-only transaction' USING ERRCODE = '25006'; END $$",
            "CREATE TRIGGER deny BEFORE INSERT ON tidemark_ledger EXECUTE FUNCTION deny()",
        )
        return lambda: database.execute("DROP TRIGGER deny ON tidemark_ledger")
    assert server.kind == "mysql"
    database.execute("SET GLOBAL super_read_only = ON")
    return lambda: database.execute("SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")


@pytest.fixture(params=["postgres", "mysql"])
def failing_over(request: pytest.FixtureRequest) -> Iterator[Database]:
    with start_server(request.param) as server, fresh_database(server) as database:
        yield database


def test_a_fail_over_is_waited_for(failing_over: Database, during: Callable[[Act], list[float]]) -> None:
    target = failing_over
    sink, job = mirror_in(target, Reconnect())
    write(sink, job, snapshot_part(1, 1, ORDERS, [ROW]))
    accept = deny_writes(target)
    made, told, notes = during(accept), events.Notes(), Notes()
    with events.told_outages(told):
        write(sink, job, log_part(2, (ORDERS, [(INSERT, (2, "Grace", None, 2, None))])))
    told.pass_on(notes)
    assert len(made) == AWAY
    assert [event for event, _ in notes.found] == ["unreachable", "reachable"]
    assert notes.found[0][1]["server"] == f"a writable target at 127.0.0.1:{target.server.port}"
    assert "read-only" in notes.found[0][1]["cause"]
    assert count(target) >= 1
    soon, accept = MirrorSink(sink.url, TEMPLATE, None, "mysql", reconnect=Reconnect(attempts=1)), deny_writes(target)
    with pytest.raises(SinkUnavailableError, match="tried 2 times") as caught:
        write(soon, job, log_part(3, (ORDERS, [(INSERT, (3, "Mary", None, 3, None))])))
    assert caught.value.exit_code == 7
    accept()


def test_a_replica_that_lags_behind_was_not_set_back(during: Callable[[Act], list[float]]) -> None:
    """It accepts no writes, and has not seen the last take-over and the last epoch yet. It is the primary's address that comes
    back with them."""
    with start_server("mysql") as server, fresh_database(server) as target:
        sink, job = mirror_in(target, Reconnect())
        sink.prepare(dataclasses.replace(job, owner=1), [ORDERS])
        job = dataclasses.replace(job, owner=2)
        sink.prepare(job, [ORDERS])
        write(sink, job, snapshot_part(1, 1, ORDERS, [ROW]))
        target.execute("UPDATE tidemark_fence SET value = 1 WHERE name = 'owner'")
        accept = deny_writes(target)

        def catch_up() -> None:
            accept()
            target.execute("UPDATE tidemark_fence SET value = 2 WHERE name = 'owner'")

        with pytest.raises(ReadOnlyError, match="read-only"):
            sink.written(job)
        made = during(catch_up)
        write(sink, job, log_part(2, (ORDERS, [(INSERT, (2, "Grace", None, 2, None))])))
        assert len(made) == AWAY
        target.execute("UPDATE tidemark_fence SET value = 1 WHERE name = 'owner'")
        with pytest.raises(SinkError, match="set back"):  # it accepts writes, so it is no replica
            write(sink, job, log_part(3, (ORDERS, [(INSERT, (3, "Mary", None, 3, None))])))


def test_a_target_that_is_a_standby_at_a_later_start_ends_it_with_7() -> None:
    with start_server("postgres") as server, fresh_database(server) as target:
        sink, job = mirror_in(target, Reconnect())
        become_primary = become_standby(target)
        with pytest.raises(ReadOnlyError, match="read-only"):
            sink.written(job)
        with pytest.raises(ReadOnlyError, match="not a standby") as caught:
            sink.prepare(job, [ORDERS], [ORDERS.table])
        assert caught.value.exit_code == 7
        with pytest.raises(SinkError, match="The target's server is a standby"):
            sink.prepare(job, [ORDERS])
        become_primary()
        sink.prepare(job, [ORDERS], [ORDERS.table])


@pytest.mark.every_server
def test_outages_that_tasks_meet_are_told_by_the_driver(postgres_database: Database, tmp_path: Path) -> None:
    """Tasks that executors run. The target denies three writes of them."""
    source = postgres_database
    source.execute("CREATE SCHEMA shop", "CREATE TABLE shop.t (id int PRIMARY KEY)", "INSERT INTO shop.t VALUES (1)")
    with fresh_database(source.server) as target:
        sink = {"type": "mirror", "url": target.url, "table": "{table}"}
        path = write_job(tmp_path, source=source_of(source, tables=["shop.*"]), sink=sink)
        run_epochs(path)
        target.execute(
            "CREATE SEQUENCE denied",
            "CREATE FUNCTION deny() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('denied') <= 3 THEN "
            "RAISE EXCEPTION 'cannot execute INSERT in a read-only transaction' USING ERRCODE = '25006'; END IF; "
            "RETURN NEW; END $$",
            "CREATE TRIGGER deny BEFORE INSERT ON tidemark_ledger FOR EACH ROW EXECUTE FUNCTION deny()",
        )
        source.execute("INSERT INTO shop.t VALUES (2)")
        process = run_to_end(path, *BY_SPARK)
        assert target.query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
        told = [event for event in process.events() if event["event"] in ("spark", "unreachable", "reachable")]
        assert [event["event"] for event in told] == ["spark", "unreachable", "reachable"]
        assert told[1]["server"] == f"a writable target at {told[2]['server'].partition(' at ')[2]}"
        assert "read-only" in told[1]["cause"]


def test_outages_that_tasks_of_an_epoch_sink_meet_are_told_once(delta_session: SparkSession) -> None:
    """Four tasks meet the same outage."""
    outages = TaskOutages(delta_session.sparkContext)
    by_tasks = outages.told_by_tasks

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with by_tasks.collected():
            retrying = reconnecting.Reconnecting(Reconnect(attempts=1, max_delay_seconds=0.001), "the source x:1")
            assert retrying.failed("it is gone")
            retrying.succeeded()
            yield from batches

    assert len(delta_session.range(0, 4, 1, 4).mapInArrow(read, "id long").collect()) == 4
    found: list[Outage] = []
    outages.tell(found.append)
    outages.tell(found.append)
    assert found[:1] == [reconnecting.Began("the source x:1", "it is gone", 1)]
    assert [type(outage).__name__ for outage in found] == ["Began", "Ended"]


def test_a_start_does_not_wait_for_a_replica() -> None:
    with start_server("mysql") as server, fresh_database(server) as database:
        deny_writes(database)
        with pytest.raises(ReadOnlyError, match=r"Name a server in sink\.url that accepts writes") as caught:
            mirror_in(database, Reconnect())
        assert caught.value.exit_code == 7
        database.execute("SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")


def test_a_job_goes_on_after_its_target_was_away(
    postgres_database: Database, tmp_path: Path, during: Callable[[Act], list[float]]
) -> None:
    source = postgres_database
    source.execute(
        "CREATE SCHEMA shop", "CREATE TABLE shop.t (id int PRIMARY KEY, v text)", "INSERT INTO shop.t VALUES (1, 'a')"
    )
    with start_server("postgres") as server, fresh_database(server) as target:
        path = write_job(
            tmp_path,
            source=source_of(source, tables=["shop.*"]),
            sink={"type": "mirror", "url": target.url, "table": "{table}"},
        )
        run_epochs(path)
        source.execute("INSERT INTO shop.t VALUES (2, 'b')")
        made = during(target.server.start)
        # at a start the target must be there
        target.server.kill()
        with pytest.raises(SinkUnavailableError) as caught:
            run_epochs(path)
        assert (caught.value.exit_code, len(made)) == (7, AT_START.attempts)
        target.server.start()
        run_epochs(path)
        assert target.query("SELECT id FROM t ORDER BY id") == [(1,), (2,)]
