"""A PostgreSQL source is upgraded by pg_upgrade, or filled from a dump: a person says so, and the job goes on
(docs/adr/0070)."""

import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.cli import CommandLine
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.forwarder import forwarding
from tests.support.history import assert_copied, assert_mirrored, read_history
from tests.support.jobs import BY_DRIVER, running, source_of, write_workload_job
from tests.support.kills import armed
from tests.support.postgres_upgrade import pg_upgrade, server_with, upgraded
from tests.support.remedies import commands_in, run_command
from tests.support.servers import Database, fresh_database
from tests.support.workload import KEYS, UPDATE_ALL, Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.model import JobFile
from tidemark.jobs import startup
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.recovery.server_upgrade import tidy_marks
from tidemark.jobs.run import run_job
from tidemark.readers.source import FoundSource
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError
from tidemark.state.job_state import JobState

pytestmark = pytest.mark.integration

AGAIN = "source.on_log_lost=resnapshot"
SLOTS = "SELECT slot_name FROM pg_replication_slots WHERE slot_name !~ '_[0-9]+_[0-9]{10}f?$' ORDER BY 1"
"""Without those of `checkpoints.keep`."""
ADVANCE_ALL = "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots"


def job_of(source: Database, folder: Path, target: Database | None = None, **changes: Any) -> Path:
    """A job with slot and publication of its own, which has read all rows and a part of the log."""
    folder.mkdir(exist_ok=True)
    name = f"job_{folder.name[-12:]}" if folder.name.startswith("test_") else folder.name
    job = write_workload_job(folder, source_of(source, slot=name, publication=name), target, job="a-job", **changes)
    if changes.get("mode") != "incremental":
        run_epochs(job)
    return job


def before_upgrade(job: Path) -> None:
    """`tidemark run JOB.yaml --before-upgrade`, in this process."""
    small = "trigger=once", "snapshot.split_rows=2000", "snapshot.parallelism=16"
    run_job(load_job_file(job, small), Notes(), RunSummary(), before_upgrade=True)


def told_before_upgrade(job: Path, expect: int, environment: dict[str, str] | None = None) -> str:
    """Returns what the command prints as its error, in a process of its own."""
    with running(job, "--before-upgrade", *BY_DRIVER, environment=environment) as process:
        assert process.wait() == expect, process.error_text()
        return process.error_text()


def at(source: Database, *more: str) -> tuple[str, ...]:
    return (f"source.url={source.url}", *more)


def refused(job: Path, *overrides: str) -> LogPositionLostError:
    with pytest.raises(LogPositionLostError) as caught:
        run_epochs(job, *overrides)
    return caught.value


def accept(job: Path, source: Database, tidemark: CommandLine) -> None:
    """Runs the command that the next run prints."""
    error = refused(job, *at(source))
    assert error.exit_code == 4
    run_command(error.remedy, job, tidemark)


def read_again(folder: Path) -> list[str]:
    """The tables whose rows were read a second time."""
    return [t for t in KEYS if "truncate" in read_history(folder / "out", "public", t)["_change_type"].to_pylist()]


def texts(notes: Notes) -> str:
    return "\n".join(str(facts.get("text")) for _, facts in notes.found)


def reads_all_again(job: Path, source: Database, tidemark: CommandLine, because: str) -> None:
    """Nothing is proven of the server: all rows are read again, if the job file allows it."""
    accept(job, source, tidemark)
    error = refused(job, *at(source))
    assert because in error.message
    assert "set source.on_log_lost: resnapshot" in error.remedy
    run_epochs(job, *at(source, AGAIN))
    assert_copied(job.parent / "out", source)
    assert read_again(job.parent) == list(KEYS)
    source.execute(*UPDATE_ALL)
    assert run_epochs(job, *at(source)) == ["stream"]
    assert_copied(job.parent / "out", source)


def test_a_job_goes_on_after_pg_upgrade(tidemark: CommandLine, postgres_server: Server, tmp_path: Path) -> None:
    """Jobs into files and a mirror, one that follows the log only, and some that die on the way."""
    before = ("upgrade.marked", "upgrade.slot", "upgrade.advanced", "upgrade.slot_removed")
    after = ("signals.answered", "another_server.moved", "signals.joined")
    with server_with("shop") as old, fresh_database(postgres_server) as target:
        create_tables(old, rows=60, uids=Uids())
        old.execute("ALTER TABLE orders ADD dropped int", "ALTER TABLE orders DROP dropped", "VACUUM FULL customers")
        old.execute("CREATE TYPE mood AS ENUM ('a', 'b')", "CREATE TABLE moods (id int PRIMARY KEY, mood mood)")
        old.execute("CREATE TABLE days (day int PRIMARY KEY) PARTITION BY LIST (day)")
        old.execute("CREATE TABLE day1 PARTITION OF days FOR VALUES IN (1)", "INSERT INTO moods VALUES (1, 'a')")
        files, mirror = job_of(old, tmp_path / "files"), job_of(old, tmp_path / "mirror", target)
        log_only = job_of(old, tmp_path / "log_only", mode="incremental")
        run_epochs(log_only)
        dying = {point: job_of(old, tmp_path / point.replace(".", "_")) for point in before + after}
        jobs = [files, mirror, log_only, *dying.values()]
        old.execute(*UPDATE_ALL)
        for job in jobs:
            run_epochs(job)
        old.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 11 = 0")
        for job in jobs:
            before_upgrade(job)
        for point in before:
            with armed(dying[point].parent, [point]) as environment:
                told_before_upgrade(dying[point], -signal.SIGKILL, environment)
            before_upgrade(dying[point])
        names = [name for (name,) in old.query(SLOTS)]
        assert len(names) == 2 * len(jobs)
        with upgraded(old) as new:
            new.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0", "ANALYZE", "CHECKPOINT")
            new.execute("UPDATE moods SET mood = 'b'", "INSERT INTO days VALUES (1)")
            for point, job in dying.items():
                accept(job, new, tidemark)
                if point in after:
                    die_at(job, point, *at(new))
            for job in (files, mirror, log_only):
                accept(job, new, tidemark)
            for job in jobs:
                notes = Notes()
                assert set(run_epochs(job, *at(new), notes=notes)) == {"stream"}
                assert ("pg_upgrade made it" in texts(notes)) == (job not in [dying[p] for p in after[1:]])
            new.execute(*UPDATE_ALL)
            for job in jobs:
                assert run_epochs(job, *at(new)) == ["stream"]
            for job in (files, *dying.values()):
                assert_copied(job.parent / "out", new)
                assert read_again(job.parent) == []
            assert_mirrored(new, target)
            assert target.query("SELECT id, mood FROM copy_moods, copy_days WHERE day = 1") == [(1, "b")]
            assert (
                read_history(tmp_path / "log_only/out", "public", "customers")["version"].to_pylist()[-1]
                == max(new.query("SELECT version FROM customers"))[0]
            )
            assert [name for (name,) in new.query(SLOTS)] == sorted(job.parent.name for job in jobs)


@pytest.mark.every_server
def test_a_job_goes_on_after_one_pg_upgrade_after_the_other(tidemark: CommandLine, tmp_path: Path) -> None:
    """Also if a driver died before the first one, and nobody has run the job again: what the mark lacks is noticed."""
    points = ("upgrade.marked", "upgrade.advanced", "upgrade.slot", "upgrade.slot_removed")
    with server_with("shop") as old:
        create_tables(old, rows=60, uids=Uids())
        plain, dying = job_of(old, tmp_path / "plain"), {p: job_of(old, tmp_path / p.replace(".", "_")) for p in points}
        jobs = [plain, *dying.values()]
        old.execute(*UPDATE_ALL)
        for job in jobs:
            run_epochs(job)
        old.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 11 = 0")
        before_upgrade(dying["upgrade.slot_removed"])
        for point, job in dying.items():
            with armed(job.parent, [point]) as environment:
                told_before_upgrade(job, -signal.SIGKILL, environment)
        before_upgrade(plain)
        old.query(ADVANCE_ALL)  # else pg_upgrade refuses the slots of jobs that died
        with upgraded(old) as new:
            new.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")
            for point, job in {"": plain, **dying}.items():
                accept(job, new, tidemark)
                run_epochs(job, *at(new, AGAIN))
                is_proven = point in {"", "upgrade.slot"}
                assert read_again(job.parent) == ([] if is_proven else list(KEYS)), point
                assert_copied(job.parent / "out", new)
            new.execute(*UPDATE_ALL)
            for job in jobs:
                moved = write_workload_job(
                    job.parent, source_of(new, slot=job.parent.name, publication=job.parent.name), None, job="a-job"
                )
                run_epochs(moved)
                before_upgrade(moved)
            with upgraded(new) as newest:
                newest.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 5 = 0")
                for job in jobs:
                    again = read_again(job.parent)
                    accept(job, newest, tidemark)
                    assert set(run_epochs(job, *at(newest))) == {"stream"}
                    assert_copied(job.parent / "out", newest)
                    assert read_again(job.parent) == again


@pytest.mark.every_server
def test_what_may_be_missing_is_read_again(tidemark: CommandLine, tmp_path: Path) -> None:
    """On the new server writes come first, then what hides them from the log."""
    with server_with("shop") as old:
        create_tables(old, rows=60, uids=Uids())
        names = (
            "late",
            "advanced",
            "noted",
            "twice",
            "alone",
            "unmarked",
            "altered",
            "published",
            "unpublished",
            "no_rows",
        )
        jobs = {name: job_of(old, tmp_path / name) for name in names if name != "no_rows"}
        jobs["no_rows"] = job_of(old, tmp_path / "no_rows", mode="incremental")
        for name in names:
            run_epochs(jobs[name])
        old.execute(*UPDATE_ALL)
        for name in names:
            if name == "unmarked":
                run_epochs(jobs[name], "checkpoints.keep=0")
                old.query("SELECT pg_replication_slot_advance('unmarked', pg_current_wal_lsn())")
            else:
                before_upgrade(jobs[name])
        old.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'late%'")
        with upgraded(old) as new:
            for name in ("no_rows", "altered", "published", "unpublished"):
                accept(jobs[name], new, tidemark)
            new.execute(*UPDATE_ALL)
            new.query("SELECT pg_create_logical_replication_slot('late', 'pgoutput', false, false, true)")
            new.query(f"{ADVANCE_ALL} WHERE slot_name LIKE 'advanced%'")
            new.query("SELECT pg_log_standby_snapshot()")
            new.query(f"{ADVANCE_ALL} WHERE slot_name LIKE 'noted%'")
            new.query("SELECT pg_log_standby_snapshot()")
            for _ in range(2):
                new.query(f"{ADVANCE_ALL} WHERE slot_name LIKE 'twice%'")
            new.query(f"{ADVANCE_ALL} WHERE slot_name IN ('alone', 'no_rows')")
            new.execute(
                "ALTER TABLE orders ADD more int DEFAULT 5",
                "VACUUM FULL customers",
                "UPDATE orders SET version = version + 1",
                "ALTER PUBLICATION published DROP TABLE order_lines",
                "UPDATE order_lines SET version = version + 1",
                "ALTER PUBLICATION published ADD TABLE order_lines",
                "ALTER PUBLICATION unpublished DROP TABLE order_lines",
            )
            for name in ("late", "advanced", "noted", "twice", "alone"):
                reads_all_again(jobs[name], new, tidemark, "are not there as pg_upgrade creates them")
            reads_all_again(jobs["unmarked"], new, tidemark, "the last run at the old server was not")
            error = refused(jobs["no_rows"], *at(new, AGAIN))
            assert "are not there as pg_upgrade creates them" in error.message
            changed = {"altered": ["orders", "customers"], "published": list(KEYS), "unpublished": list(KEYS)}
            for name, tables in changed.items():
                notes = Notes()
                run_epochs(jobs[name], *at(new), notes=notes)
                assert "is read again: " in texts(notes)
                assert_copied(tmp_path / name / "out", new)
                assert read_again(tmp_path / name) == tables
                new.execute(*UPDATE_ALL)
                assert run_epochs(jobs[name], *at(new)) == ["stream"]
                assert_copied(tmp_path / name / "out", new)


@pytest.mark.every_server
def test_changes_that_the_job_has_not_read_before_the_upgrade_are_noticed(
    tidemark: CommandLine, postgres_server: Server, tmp_path: Path
) -> None:
    """Somebody advances the slots past them, so that pg_upgrade accepts them."""
    with server_with("shop") as old, fresh_database(postgres_server) as target:
        create_tables(old, rows=60, uids=Uids())
        job, mirror = job_of(old, tmp_path / "files"), job_of(old, tmp_path / "mirror", target)
        before_upgrade(job)
        before_upgrade(mirror)
        old.execute(*UPDATE_ALL)
        old.query(ADVANCE_ALL)
        with upgraded(old) as new:
            reads_all_again(job, new, tidemark, "or the old server had transactions after tidemark run JOB.yaml")
            accept(mirror, new, tidemark)
            die_at(mirror, "another_server.left", *at(new, AGAIN))
            die_at(mirror, "another_server.moved", *at(new, AGAIN))
            die_at(mirror, "tables.after_joined", *at(new, AGAIN))
            run_epochs(mirror, *at(new, AGAIN))
            assert_mirrored(new, target)


@pytest.mark.every_server
def test_changes_that_the_job_has_read_after_the_mark_are_noticed(
    tidemark: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the disk that is older than they are is upgraded. The job's last run was quiet at its start, so it kept the
    mark."""
    with server_with("shop") as old:
        create_tables(old, rows=60, uids=Uids())
        job = job_of(old, tmp_path / "shop")
        before_upgrade(job)
        assert old.server.data_folder is not None
        data, earlier = old.server.data_folder, tmp_path / "data"
        old.server.stop()
        subprocess.run(["cp", "-a", data, earlier], check=True)  # it keeps the owner
        old.server.start()

        def tidy_before_writes(job: JobFile, found: FoundSource, state: JobState) -> None:
            tidy_marks(job, found, state)
            old.execute(*UPDATE_ALL, "DELETE FROM orders WHERE id % 7 = 0")

        with monkeypatch.context() as patch:
            patch.setattr(startup, "tidy_marks", tidy_before_writes)
            run_epochs(job)
        assert_copied(tmp_path / "shop/out", old)
        assert len(Checkpoint.at(load_job_file(job).checkpoint).upgrade_marks()) == 1
        old.server.stop()
        shutil.rmtree(data)
        shutil.move(earlier, data)
        with upgraded(old) as new:
            reads_all_again(job, new, tidemark, "has read some at the old server after tidemark run JOB.yaml")


def test_pg_upgrade_refuses_the_slot_without_the_run_before(tidemark: CommandLine, tmp_path: Path) -> None:
    """The old server goes on after a mark: nothing is lost there, and no slot stays."""
    with server_with("shop") as old:
        create_tables(old, rows=60, uids=Uids())
        job = job_of(old, tmp_path / "shop")
        old.execute(*UPDATE_ALL)
        run_epochs(job)
        old.execute(*UPDATE_ALL)
        with server_with("other") as empty:
            old.server.stop()
            empty.server.stop()
            ended = pg_upgrade(old.server, empty.server, "--check")
            assert (ended.returncode, "Checking for valid logical replication slots" in ended.stdout) == (1, True)
            assert "consume the pending WAL" in ended.stdout
            old.server.start()
            before_upgrade(job)
            run_epochs(job)  # of a scheduler: nothing was written, and the mark stays
            assert len(old.query(SLOTS)) == 2
            old.server.stop()
            ended = pg_upgrade(old.server, empty.server, "--check")
            assert "Checking for valid logical replication slots                  ok" in ended.stdout
            old.server.start()
        old.execute(*UPDATE_ALL)
        run_epochs(job)
        assert old.query(SLOTS) == [("shop",)]
        assert Checkpoint.at(load_job_file(job).checkpoint).upgrade_marks() == {}
        assert_copied(tmp_path / "shop/out", old)
        before_upgrade(job)
        ended = tidemark("drop", job, "--yes")
        assert (ended.code, old.query(SLOTS)) == (0, [])


@pytest.mark.every_server
def test_a_run_before_the_upgrade_waits_for_the_end_of_writes(tmp_path: Path) -> None:
    with server_with("shop") as old:
        create_tables(old, rows=60, uids=Uids())
        job = job_of(old, tmp_path / "shop")
        with Writers(old, Uids(), count=1, seed=5, pause_seconds=0.01):
            told = told_before_upgrade(job, 3)
        assert "Transactions are still written" in told
        assert "ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()" in told
        statements = re.search(r"autovacuum \((.*); (SELECT .*\(\))\)", told)
        assert statements is not None
        old.execute(*statements.groups())
        assert told_before_upgrade(job, 0) == ""
        assert len(old.query(SLOTS)) == 2
        assert_copied(tmp_path / "shop/out", old)


@pytest.mark.every_server
def test_a_person_names_one_server(tidemark: CommandLine, tmp_path: Path) -> None:
    """A database that came from a dump: its log begins at smaller positions, and its tables are others. Versions never fall."""
    with server_with("shop") as old, server_with("shop") as new:
        create_tables(old, rows=60, uids=Uids())
        job = job_of(old, tmp_path / "shop")
        old.execute("CREATE SCHEMA elsewhere", *UPDATE_ALL)
        for number in range(5):
            old.execute("SELECT pg_switch_wal()", f"CREATE TABLE elsewhere.t{number} (id int)")
        old.execute(*UPDATE_ALL)
        run_epochs(job)
        create_tables(new, rows=60, uids=Uids())
        new.execute(*UPDATE_ALL, *UPDATE_ALL, *UPDATE_ALL)
        own, wrong = old.query("SELECT system_identifier FROM pg_control_system()")[0][0], 7
        ended = tidemark("signal", job, "accept-server", own)
        assert (ended.code, "The job is at the server" in ended.err) == (2, True)
        for arguments in ([], ["x"], [wrong, wrong], [wrong, "--table", "public.orders"]):
            assert tidemark("signal", job, "accept-server", *arguments).code == 2
        assert tidemark("signal", job, "accept-server", wrong).code == 0
        first = refused(job, *at(new, AGAIN))
        assert commands_in(first.remedy) == commands_in(refused(job, *at(new, AGAIN)).remedy)
        run_epochs(job)  # the word does no harm at the job's own server
        for _ in range(2):
            run_command(first.remedy, job, tidemark)
        assert tidemark("signal", job, "list").out.count("accept-server") == 3
        highest = max(read_history(tmp_path / "shop/out", "public", t)["_commit_version"].to_pylist()[-1] for t in KEYS)
        run_epochs(job, *at(new, AGAIN))
        assert_copied(tmp_path / "shop/out", new)
        assert read_again(tmp_path / "shop") == list(KEYS)
        new.execute(*UPDATE_ALL)
        assert run_epochs(job, *at(new)) == ["stream"]
        assert_copied(tmp_path / "shop/out", new)
        for table in KEYS:
            history = read_history(tmp_path / "shop/out", "public", table)
            kinds, versions = history["_change_type"].to_pylist(), history["_commit_version"].to_pylist()
            assert min(versions[kinds.index("truncate") :]) >= highest
        refused(job, AGAIN)  # back at the old one, of which nobody has said a word
        assert tidemark("signal", job, "accept-server", own).code == 0
        run_epochs(job, AGAIN)
        assert_copied(tmp_path / "shop/out", old)
        refused(job, *at(new, AGAIN))  # the word was for the way there once


@pytest.mark.every_server
def test_a_job_that_runs_goes_on_at_the_server_that_was_named_before(tidemark: CommandLine, tmp_path: Path) -> None:
    with server_with("shop") as old, server_with("shop") as new, forwarding(old.server) as address:
        for database in (old, new):
            create_tables(database, rows=60, uids=Uids())
        new.execute(*UPDATE_ALL)
        job = job_of(old, tmp_path / "shop", trigger="100ms")
        url = f"source.url=postgresql://postgres@127.0.0.1:{address.port}/shop"
        system = new.query("SELECT system_identifier FROM pg_control_system()")[0][0]
        with running(job, "--set", url, "--set", AGAIN, *BY_DRIVER) as process:
            process.wait_until(lambda: any(event.get("phase") == "stream" for event in process.events()))
            assert tidemark("signal", job, "accept-server", system).code == 0
            old.server.stop()
            address.server = new.server
            process.wait_until(lambda: any(event["event"] == "moved" for event in process.events()))
            process.wait_until(lambda: read_again(tmp_path / "shop") == list(KEYS))
            process.popen.send_signal(signal.SIGINT)
            assert process.wait() == 130, process.error_text()
        run_epochs(job, *at(new, "trigger=once"))
        assert_copied(tmp_path / "shop/out", new)


@pytest.mark.every_server
def test_slots_of_older_servers_do_not_survive(tidemark: CommandLine, tmp_path: Path) -> None:
    with server_with("shop", "16-programs") as old:
        create_tables(old, rows=60, uids=Uids())
        job = job_of(old, tmp_path / "shop")
        told = told_before_upgrade(job, 3)
        assert "pg_upgrade keeps replication slots of PostgreSQL 17 and newer, not of PostgreSQL 16.2" in told
        assert "Upgrade the server without this step" in told
        old.execute(*UPDATE_ALL)
        run_epochs(job)
        old.execute(*UPDATE_ALL)
        with upgraded(old) as new:
            new.execute(*UPDATE_ALL)
            reads_all_again(job, new, tidemark, "the last run at the old server was not")


@pytest.mark.every_server
def test_a_first_load_must_be_complete(tidemark: CommandLine, tmp_path: Path) -> None:
    """One that is not starts again on the new server."""
    with server_with("shop") as old:
        create_tables(old, rows=60, uids=Uids())
        job = write_workload_job(tmp_path, source_of(old))
        assert run_epochs(job, at_most=2) != []
        old.query(ADVANCE_ALL)
        with upgraded(old) as new:
            new.execute(*UPDATE_ALL)
            accept(job, new, tidemark)
            assert "the last run at the old server was not" in refused(job, *at(new)).message
            run_epochs(job, *at(new, AGAIN))
            assert_copied(tmp_path / "out", new)


def test_it_is_for_postgresql_alone(mysql_database: Database, tidemark: CommandLine, tmp_path: Path) -> None:
    create_tables(mysql_database, rows=20, uids=Uids())
    job = write_workload_job(tmp_path, source_of(mysql_database))
    run_epochs(job)
    ended = tidemark("signal", job, "accept-server", 7)
    assert (ended.code, "is known by its GTIDs" in ended.err) == (2, True)
    run_epochs(job)
    ended = tidemark("run", job, "--before-upgrade")
    assert (ended.code, "Leave it out" in ended.err) == (2, True)
