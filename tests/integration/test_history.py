"""The history that the planner keeps of real epochs."""

import json
import time
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from tests.support.cli import CommandLine, job_of
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.epoch.read_parts import read_part, tasks_of
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.monitoring import running_splits
from tidemark.jobs.monitoring.events import TerminalEvents
from tidemark.jobs.monitoring.history import Kept
from tidemark.jobs.monitoring.progress import read_progress
from tidemark.jobs.monitoring.running_splits import RunningSplits
from tidemark.jobs.startup import open_job
from tidemark.state.checkpoint.codec import EPOCHS, SPLITS
from tidemark.state.checkpoint.layout import Checkpoint


def test_an_epoch_lasts_until_it_is_written_not_until_the_next_is_triggered(shop: Database, tmp_path: Path) -> None:
    job = load_job_file(job_of(tmp_path, shop))
    with open_job(job, Notes()) as opened:
        context = RunContext(job, opened.held.server, opened.held.state)
        planner = context.planner()
        planner.end_at_log_end()
        began = time.monotonic()
        assert planner.next_epoch(0) == 1
        planner.note_written(1)
        longest = time.monotonic() - began
        for task in tasks_of(context, 1):
            assert list(read_part(task))
        assert planner.next_epoch(1) == 2
        planner.save_history()
    kept = Kept(Checkpoint.at(job.checkpoint).store, EPOCHS).load()
    assert kept is not None
    (epoch,) = kept.recent
    assert (epoch.phase, epoch.measured, epoch.rows > 0) == ("snapshot", 1, True)
    assert epoch.seconds <= longest + 0.001


def test_splits_of_the_running_epoch_are_counted_as_they_are_read(
    tidemark: CommandLine, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_splits, "LIST_SECONDS", 0.0)
    path = job_of(tmp_path, shop)
    job, checkpoint = load_job_file(path), Checkpoint.at(str(tmp_path / "checkpoint"))
    table, running = f"{shop.name}.orders", RunningSplits(checkpoint)
    drawn = TerminalEvents(Live(console=Console(file=StringIO(), width=120)))

    def shown() -> str:
        progress = read_progress(checkpoint, job, opened.held.state, 0)
        assert progress is not None
        console = Console(file=StringIO(), width=120)
        console.print(drawn._draw(progress.with_published(running.count(1))))
        assert isinstance(console.file, StringIO)
        (line,) = [line for line in console.file.getvalue().splitlines() if table in line]
        return line

    with open_job(job, Notes()) as opened:
        context = RunContext(job, opened.held.server, opened.held.state)
        assert context.planner().next_epoch(0) == 1
        assert (running.count(1), "━" in shown()) == ({}, False)
        first, second = tasks_of(context, 1)
        list(read_part(first))
        assert running.count(1) == {table: 1}
        assert ("━" in shown(), " 1/" in shown()) == (True, True)
        list(read_part(second))
        assert running.count(1) == {table: 2}
    (told,) = json.loads(tidemark("status", path, "--json").out)["tables"]
    assert (told["splits_done"], told["splits_published"]) == (0, 2)
    run_epochs(path)
    (told,) = json.loads(tidemark("status", path, "--json").out)["tables"]
    assert (told["splits_done"] > 2, told["splits_published"]) == (True, 0)


def test_what_epochs_brought_and_which_watermarks_their_splits_had(
    any_source_database: Database, tmp_path: Path
) -> None:
    database = any_source_database
    database.execute("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(9))")
    database.execute(*(f"INSERT INTO orders VALUES ({i}, 'a')" for i in range(7)))
    source = source_of(database)
    job = job_of(tmp_path, database, source=source)
    run_epochs(job, at_most=1)
    database.execute("INSERT INTO orders VALUES (100, 'late')", "UPDATE orders SET note = 'b' WHERE id = 3")
    run_epochs(job)
    store = Checkpoint.at(str(tmp_path / "checkpoint")).store
    epochs, splits = Kept(store, EPOCHS).load(), Kept(store, SPLITS).load()
    assert epochs is not None
    assert splits is not None
    assert [epoch.first_epoch for epoch in epochs.recent] == list(range(1, epochs.last_epoch + 1))
    assert sum(epoch.rows for epoch in epochs.recent) == sum(s.rows for t in splits.tables for s in t.stretches) >= 7
    assert sum(epoch.changes + epoch.filtered_changes for epoch in epochs.recent) == 2
    (table,) = splits.tables
    tail, *others = table.stretches
    assert (tail.end, others[0].start, others[-1].end) == (None, None, tail.start)
    assert [one.start for one in others[1:]] == [one.end for one in others[:-1]]
    for one in table.stretches:
        assert one.low is not None
        assert one.low <= one.least_high == one.high
    assert min(one.high for one in table.stretches) < max(one.high for one in table.stretches)
