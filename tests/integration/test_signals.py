"""Signals about the whole job and about tables: pause, resume, stop-snapshot, set."""

import contextlib
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import die_at
from tests.support.history import read_history
from tests.support.servers import Database
from tests.support.steered import Case
from tests.support.workload import KEYS, UPDATE_ALL, Uids, Writers
from tidemark.conf.load import load_job_file
from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.jobs import startup
from tidemark.jobs.commands.signal import list_signals, pause, resnapshot, resume, set_settings, stop_snapshot
from tidemark.jobs.commands.status import status
from tidemark.jobs.commands.tables import tables
from tidemark.jobs.signals import requests
from tidemark.jobs.tables.parking import require_none_parked
from tidemark.readers.source import FoundSource
from tidemark.state import failpoints
from tidemark.state.errors import JobFileError, PausedError
from tidemark.state.failpoints import FailpointError
from tidemark.state.job_state import JobState
from tidemark.state.plan import SnapshotWork
from tidemark.state.signals import Signal

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family, pytest.mark.servers_in_turn]


@pytest.fixture
def case(any_source_database: Database, tmp_path: Path) -> Case:
    return Case(any_source_database, tmp_path)


@pytest.fixture
def mysql_case(mysql_database: Database, tmp_path: Path) -> Case:
    return Case(mysql_database, tmp_path)


def test_a_paused_job_reads_and_writes_nothing_until_it_is_resumed(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    case.run()
    case.change()
    pause(case.job, [])
    committed = case.checkpoint.committed_epoch()
    for _ in range(2):  # also the next driver
        with pytest.raises(PausedError, match=r"paused by a signal .* nothing is copied") as caught:
            case.run()
        assert caught.value.exit_code == 10
        assert "tidemark signal JOB.yaml resume" in caught.value.remedy
    assert max(case.checkpoint.plan_epochs()) == committed
    status(case.job, as_json=False)
    assert "PAUSED since" in capsys.readouterr().out
    resume(case.job, [])
    case.run()
    case.assert_copied()
    capsys.readouterr()
    list_signals(case.job)
    told = capsys.readouterr().out
    assert "pause" in told
    assert told.count("done") == 2
    assert "The job continues." in told


def test_a_paused_table_leaves_the_others_go_on_and_resume_reads_it_again(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    case.run()
    pause(case.job, [case.customers])
    case.database.execute(*UPDATE_ALL, "ALTER TABLE customers ADD COLUMN more INT")
    before = read_history(case.folder / "out", case.database.schema, "customers")
    for _ in range(2):  # it does not come back by itself
        told = [facts for event, facts in case.run().found if event == "paused"]
        assert [facts["table"] for facts in told] == [str(case.customers)]
        assert "resume --table" in told[0]["text"]
        require_none_parked(case.job, case.state)  # no exit code 9
        for table in ("orders", "order_lines"):
            case.assert_table_copied(table)
        case.change()
    assert read_history(case.folder / "out", case.database.schema, "customers") == before
    tables(case.job)
    assert "paused since" in capsys.readouterr().out
    resume(case.job, [case.customers])
    case.run()
    case.assert_copied()
    case.change()
    case.run()
    case.assert_copied()
    list_signals(case.job)
    told = " ".join(capsys.readouterr().out.split())
    assert "its rows have been read" in told
    assert not case.state.left


@pytest.mark.parametrize("is_paused_between", [False, True])
def test_a_resume_leaves_a_resnapshot_in_force(
    mysql_case: Case, capsys: pytest.CaptureFixture[str], *, is_paused_between: bool
) -> None:
    """Both come before the driver looks. The table is not paused, or was to be."""
    case = mysql_case
    case.run()
    known = case.state.came_back
    resnapshot(case.job, [case.customers])
    if is_paused_between:
        pause(case.job, [case.customers])
    resume(case.job, [case.customers])
    case.run()
    assert case.state.came_back != known
    case.assert_table_copied("customers")
    answers = [answer for _, answer in case.checkpoint.signals().values()]
    assert [answer.accepted for answer in answers] == [True, *([False] if is_paused_between else []), True]
    assert "rows are read again" in answers[0].text


def test_a_resume_is_answered_right_after_the_run_that_took_it_died(mysql_case: Case) -> None:
    case = mysql_case
    case.run()
    pause(case.job, [case.customers])
    case.run()
    resume(case.job, [case.customers])
    die_at(case.path, "signals.joined")
    case.run()
    (*_, (_, answer)) = case.checkpoint.signals().values()
    assert answer is not None
    assert "rows are read again" in answer.text
    case.assert_copied()


def test_the_list_shows_how_far_a_reading_is_after_signals_that_read_nothing(
    mysql_case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    case = mysql_case
    small = ("snapshot.split_rows=5", "snapshot.parallelism=1")
    case.run()
    resnapshot(case.job, [case.customers])
    case.run(*small, at_most=1)

    def told() -> str:
        capsys.readouterr()
        list_signals(case.job)
        return " ".join(capsys.readouterr().out.split())

    assert "Read so far:" in told()
    resume(case.job, [case.customers])
    stop_snapshot(case.job, [case.customers])
    assert "Read so far:" in told()
    with pytest.raises(PausedError, match="A signal has stopped the reading of rows"):
        case.run(*small)
    assert "Read so far:" in told()
    resume(case.job, [case.customers])
    case.run()
    assert "Read so far:" not in told()
    assert "its rows have been read" in told()


def test_a_signal_from_a_machine_whose_clock_is_behind_is_followed(
    mysql_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given after the table came back, and says that it was before."""
    mysql_case.run()
    hour_us = 3600 * 10**6
    for lag_us in (0, hour_us):
        monkeypatch.setattr(requests, "_now_us", lambda lag_us=lag_us: time.time_ns() // 1000 - lag_us)
        resnapshot(mysql_case.job, [mysql_case.customers])
        told = [event for event, facts in mysql_case.run().found if facts.get("table") == str(mysql_case.customers)]
        assert "joined" in told


def test_a_paused_table_that_can_t_be_read_any_more_is_parked_by_resume(mysql_case: Case) -> None:
    mysql_case.run()
    pause(mysql_case.job, [mysql_case.customers])
    mysql_case.run()
    mysql_case.database.execute("DROP TABLE customers")
    mysql_case.run()  # nobody looks for it
    resume(mysql_case.job, [mysql_case.customers])
    mysql_case.run()
    (left,) = mysql_case.state.left
    assert left.is_parked
    assert not left.paused
    (_, (_, answer)) = mysql_case.checkpoint.signals().values()
    assert answer is not None
    assert not answer.accepted


def test_a_parked_table_may_be_paused_and_the_newest_signal_counts(mysql_case: Case) -> None:
    case = mysql_case
    case.run()
    case.database.execute(*UPDATE_ALL, "ALTER TABLE customers ADD COLUMN more INT", *UPDATE_ALL)
    case.run()
    (left,) = case.state.left
    assert left.is_parked
    pause(case.job, [case.customers])
    case.run()
    require_none_parked(case.job, case.state)
    resnapshot(case.job, [case.customers])
    pause(case.job, [case.customers])
    case.run()
    assert [left.paused for left in case.state.left] == [True]
    pause(case.job, [case.customers])
    resnapshot(case.job, [case.customers])
    case.run()
    case.assert_copied()
    answers = [answer for _, answer in case.checkpoint.signals().values()]
    assert [answer is not None and answer.accepted for answer in answers] == [True, False, True, False, True]


def test_a_job_of_which_all_tables_are_paused_says_so(mysql_case: Case) -> None:
    case = mysql_case
    case.run()
    pause(case.job, [TableName(case.database.schema, table) for table in KEYS])
    with pytest.raises(PausedError, match="All tables of the job are paused"):
        case.run()
    resume(case.job, [TableName(case.database.schema, table) for table in KEYS])
    case.change()
    case.run()
    case.assert_copied()


@pytest.mark.parametrize("interleave", [True, False])
def test_no_splits_are_read_while_the_log_is_followed(
    any_source_database: Database, tmp_path: Path, *, interleave: bool
) -> None:
    case = Case(any_source_database, tmp_path, snapshot={"split_rows": 5, "parallelism": 1, "interleave": interleave})
    with contextlib.suppress(PausedError):
        case.run(at_most=1)
    stop_snapshot(case.job)
    case.change()
    for _ in range(2):
        with pytest.raises(PausedError, match=r"stopped the reading of rows: .* is not copied completely") as caught:
            case.run()
        assert caught.value.exit_code == 10
        case.change()
    works = [case.checkpoint.plan(epoch).plan.work for epoch in case.checkpoint.plan_epochs()]
    assert [work.kind for work in works] == ["snapshot", *["log"] * (len(works) - 1)]
    assert len(works) >= 3, "the log is followed"
    resume(case.job, [])
    case.run()
    case.assert_copied()


@pytest.mark.parametrize("mode", ["full+incremental", "full"])
def test_splits_of_one_table_wait_while_all_others_are_read(
    any_source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    snapshot = {"split_rows": 5, "parallelism": 1, "interleave": False}
    case = Case(any_source_database, tmp_path, mode=mode, snapshot=snapshot)
    case.run(at_most=1)
    stop_snapshot(case.job, [case.customers])
    die_at(case.path, "signals.answered")
    for _ in range(2):  # also the next driver
        case.change()
        with pytest.raises(PausedError, match=r"rows: \S+customers is not copied completely") as caught:
            case.run()
        assert f"resume --table {case.customers}" in caught.value.remedy
    if mode == "full+incremental":
        for table in ("orders", "order_lines"):
            case.assert_table_copied(table)  # with all changes
    read = [
        {split.table.name for task in work.tasks for split in task}
        for work in (case.checkpoint.plan(epoch).plan.work for epoch in case.checkpoint.plan_epochs())
        if isinstance(work, SnapshotWork)
    ]
    assert read[0] == {"customers"}
    assert set().union(*read[1:]) == {"orders", "order_lines"}
    tables(case.job)
    status(case.job, as_json=False)
    out = capsys.readouterr().out
    assert "snapshot stopped by a signal, 1 of" in out
    assert f"no splits of {case.customers} are read." in out
    resume(case.job, [])  # is about the job
    with pytest.raises(PausedError):
        case.run()
    resume(case.job, [case.customers])
    stop_snapshot(case.job, [TableName(case.database.schema, "orders")])
    case.run()
    case.assert_copied()
    told = [answer.text for _, answer in case.checkpoint.signals().values() if answer is not None]
    assert told == [
        "No more splits of it are read.",
        "It was not paused.",
        "The reading of its rows continues.",
        "All its splits are read or planned.",
    ]


def test_settings_hold_until_they_are_set_back(mysql_case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case = mysql_case
    case.run(at_most=1)

    def tasks() -> int:
        case.change()
        resnapshot(case.job, [case.customers])
        case.run()
        works = [case.checkpoint.plan(epoch).plan.work for epoch in case.checkpoint.plan_epochs()]
        return len([work for work in works if isinstance(work, SnapshotWork)][-1].tasks)

    set_settings(case.job, ["snapshot.parallelism=1", "snapshot.max_rows_per_second=100000"])
    assert tasks() == 1
    assert tasks() == 1, "the next driver has it, too"
    status(case.job, as_json=False)
    assert "snapshot.max_rows_per_second=100000, snapshot.parallelism=1" in capsys.readouterr().out
    set_settings(case.job, ["snapshot.parallelism=default"])
    assert tasks() == 2
    case.assert_copied()


def test_signals_that_make_no_sense_are_refused(mysql_case: Case) -> None:
    case = mysql_case
    case.run()
    with pytest.raises(JobFileError, match="does not copy"):
        pause(case.job, [TableName(case.database.schema, "nothing")])
    with pytest.raises(JobFileError, match="can't change"):
        set_settings(case.job, ["snapshot.parallelism=2", "sink.path=/other"])
    with pytest.raises(JobFileError, match="needs a setting"):
        set_settings(case.job, [])
    with pytest.raises(JobFileError, match="can't read rows again"):
        pause(load_job_file(case.path, ["mode=incremental"]), [case.customers])
    with pytest.raises(JobFileError, match="reads no splits"):
        stop_snapshot(load_job_file(case.path, ["mode=incremental"]))
    assert not case.checkpoint.signals()
    # A later Tidemark may know more settings.
    case.checkpoint.create_signal(Signal(None, 1, "set", "sink.path", "/other"))
    case.run()
    ((_, answer),) = case.checkpoint.signals().values()
    assert answer is not None
    assert not answer.accepted
    assert "can't change sink.path" in answer.text


def test_a_signal_that_arrives_while_the_job_is_opened_is_followed_later(
    mysql_case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be answered without being followed."""
    case = mysql_case
    case.run()
    case.change()
    real = startup.find_source

    def with_signal(job: JobFile, *more: Any) -> contextlib.AbstractContextManager[FoundSource]:
        if not case.checkpoint.signals():
            resnapshot(case.job, [case.customers])
        return real(job, *more)

    monkeypatch.setattr(startup, "find_source", with_signal)
    case.run()
    assert case.checkpoint.has_open_signals()
    assert not case.state.came_back
    case.run()
    assert not case.checkpoint.has_open_signals()
    assert [table.name for table in case.state.came_back] == ["customers"]
    case.assert_copied()


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_signal_that_arrives_while_earlier_ones_are_followed_does_not_change_them(
    mysql_case: Case, monkeypatch: pytest.MonkeyPatch, *, is_paused: bool
) -> None:
    """A pause after a resume of a paused table, and a resume after a pause."""
    case = mysql_case
    case.run()
    first, second = (resume, pause) if is_paused else (pause, resume)
    if is_paused:
        pause(case.job, [case.customers])
        case.run()
    first(case.job, [case.customers])
    case.change()
    real, given = startup.pause_left, []

    def with_signal(*arguments: Any) -> JobState:
        if not given:
            given.append(second(case.job, [case.customers]))
        return real(*arguments)

    monkeypatch.setattr(startup, "pause_left", with_signal)
    case.run()
    (*_, (_, answer), (_, later)) = case.checkpoint.signals().values()
    assert answer is not None
    assert answer.accepted, answer.text
    assert later is None
    assert [left.why for left in case.state.left] == ([] if is_paused else [""])
    case.run()
    assert not case.checkpoint.has_open_signals()
    assert [left.paused for left in case.state.left] == ([True] if is_paused else [])
    if not is_paused:
        case.assert_copied()


def test_resume_of_a_job_says_which_tables_stay_paused(
    postgres_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = Case(postgres_database, tmp_path)
    case.run()
    pause(case.job, [case.customers])
    pause(case.job, [])
    assert "the replication slot keeps the server's log" in capsys.readouterr().out
    with pytest.raises(PausedError, match="nothing is copied"):
        case.run()
    resume(case.job, [])
    case.run()
    capsys.readouterr()
    resume(case.job, [])
    assert "These tables stay paused: public.customers." in capsys.readouterr().out


@pytest.mark.parametrize(("sink", "seed"), [("files", 1), ("mirror", 2)])
def test_random_signals_under_writers(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path, sink: str, seed: int
) -> None:
    """In the middle of the first load, and of a table's return. In the end all is resumed, and source and copy are equal."""
    source, generator, uids = any_source_database, random.Random(seed), Uids()
    target: Database | None = request.getfixturevalue(f"{source.kind}_database") if sink == "mirror" else None
    changes: dict[str, Any] = {"snapshot": {"split_rows": 20, "parallelism": 2, "interleave": seed == 1}}
    if target is not None:
        changes["sink"] = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    case = Case(source, tmp_path, rows=150, uids=uids, **changes)
    with Writers(source, uids, count=2, seed=seed, pause_seconds=0.02):
        case.run(at_most=2)
        for number in range(12):
            table = TableName(source.schema, generator.choice(list(KEYS)))
            match generator.randrange(7):
                case 0:
                    pause(case.job, [table])
                case 1:
                    resume(case.job, [table])
                case 2:
                    resnapshot(case.job, [table])
                case 3:
                    stop_snapshot(case.job, [table] if number % 2 else [])
                case 4:
                    set_settings(case.job, [f"snapshot.parallelism={generator.choice(['1', '3', 'default'])}"])
                case 5:
                    pause(case.job, [])
                case _:
                    resume(case.job, [])
            with contextlib.suppress(PausedError):
                case.run(at_most=generator.choice([1, 2, 3, 5, None]))
    resume(case.job, [])
    resume(case.job, [TableName(source.schema, table) for table in KEYS])
    case.run()
    if target is None:
        case.assert_copied()
        return
    for table, key in KEYS.items():
        query = f"SELECT {', '.join(key)}, uid, version, note FROM %s ORDER BY uid"
        assert target.query(query % f"copy_{table}") == source.query(query % table), table


POINTS = (
    "signals.answered",
    "signals.left",
    "tables.before_joined",
    "tables.after_joined",
    "signals.joined",
    "planner.after_plan",
    "sink.after_commit",
    "driver.epoch_written",
)


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", POINTS)
def test_a_run_dies_while_it_follows_signals(
    any_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    case = Case(any_source_database, tmp_path)
    case.run()
    (armed := tmp_path / "armed").mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))

    def run_through_death() -> None:
        case.change()
        (armed / point).write_text("raise")
        with contextlib.suppress(FailpointError, PausedError):
            case.run()
        (armed / point).unlink(missing_ok=True)
        case.change()
        with contextlib.suppress(PausedError):
            case.run()
        assert not case.checkpoint.has_open_signals()

    pause(case.job, [case.customers])
    set_settings(case.job, ["snapshot.parallelism=1"])
    run_through_death()
    assert [left.table.name for left in case.state.left if left.paused] == ["customers"]
    for table in ("orders", "order_lines"):
        case.assert_table_copied(table)
    resume(case.job, [case.customers])
    stop_snapshot(case.job)
    run_through_death()
    assert not case.state.left
    pause(case.job, [])
    run_through_death()
    resume(case.job, [])
    run_through_death()
    case.assert_copied()
    answers = [answer for _, answer in case.checkpoint.signals().values()]
    assert [answer is not None and answer.accepted for answer in answers] == [True] * 6
