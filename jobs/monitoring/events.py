"""The output of a run: live progress bars on a terminal, one JSON line per event elsewhere."""

import json
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timezone
from functools import partial
from typing import Any, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tidemark.conf.reconnect import Began, Ended, outages_told_to
from tidemark.conf.redaction import redact_values
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress
from tidemark.readers.long_waits import waits_told_to


class Events(Protocol):
    """Receives the events of a run, in the driver's main thread."""

    def note(self, event: str, **facts: Any) -> None:
        """Reports an event: started, resumed, joined, altered, moved, left, parked, waiting, paused, snapshot_stopped,
        settings, signal, repair, warning, unreachable, reachable, spark, stopping, finished, failed, metrics
        (docs/monitoring.md)."""

    def progress(self, progress: JobProgress) -> None:
        """Reports the job's progress; called up to a few times per second."""


class Notes:
    """Events that other threads report, kept until the main thread takes them."""

    def __init__(self) -> None:
        self._kept: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()

    def add(self, event: str, **facts: Any) -> None:
        self._kept.put((event, facts))

    def pass_on(self, events: Events) -> None:
        """Reports what was added since the last call."""
        while not self._kept.empty():
            event, facts = self._kept.get()
            events.note(event, **facts)


@contextmanager
def told_outages(notes: Notes) -> Iterator[None]:
    """Adds events to `notes` when a server goes out of reach of this process, and when it comes back; and when something waits
    long for other sessions."""
    with outages_told_to(partial(tell_outage, notes)), waits_told_to(lambda text: notes.add("warning", text=text)):
        yield


def tell_outage(notes: Notes, outage: Began | Ended) -> None:
    match outage:
        case Began(server, cause, attempts):
            notes.add("unreachable", server=server, cause=cause, attempts=attempts)
        case Ended(server, seconds):
            notes.add("reachable", server=server, seconds=seconds)


class JsonEvents:
    """Prints one JSON object per line on stdout; progress once per epoch."""

    def __init__(self) -> None:
        self._last_epoch = -1

    def note(self, event: str, **facts: Any) -> None:
        moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        print(
            json.dumps({"at": moment, "event": event, **{key: redact_values(value) for key, value in facts.items()}}),
            flush=True,
        )

    def progress(self, progress: JobProgress) -> None:
        if progress.committed_epoch == self._last_epoch:
            return
        self._last_epoch = progress.committed_epoch
        facts = asdict(progress)
        tables = facts.pop("tables")
        self.note(
            "epoch",
            **facts,
            splits_done=sum(t["splits_done"] for t in tables),
            rows=sum(t["rows"] for t in tables),
            tables_done=sum(t["complete"] for t in tables),
            tables=len(tables),
        )


class TerminalEvents:
    """Draws a live table: one bar per table while splits are read, then position and lag."""

    LISTED_TABLES = 20

    def __init__(self, live: Live) -> None:
        self._live = live
        self._first: tuple[float, int] | None = None

    def note(self, event: str, **facts: Any) -> None:
        if event == "failed":  # the last line on stderr tells the same
            return
        told = {key: redact_values(value) for key, value in facts.items() if not isinstance(value, (list, dict))}
        text = " ".join(f"{key}={value}" for key, value in told.items())
        self._live.console.print(f"{event} {text}".rstrip(), markup=False, highlight=False)

    def progress(self, progress: JobProgress) -> None:
        self._live.update(self._draw(progress))

    def _draw(self, progress: JobProgress) -> Group:
        rows = sum(table.rows for table in progress.tables)
        now = time.monotonic()
        if self._first is None:
            self._first = (now, rows)
        first_seconds, first_rows = self._first
        drawn = Table(box=None, pad_edge=False, title=None)
        for heading in ("table", "", "splits", "rows", "rows/s", "ETA"):
            drawn.add_column(heading, justify="left" if heading in {"table", ""} else "right", no_wrap=True)
        unfinished = [table for table in progress.tables if not table.complete]
        all_fit = len(progress.tables) <= self.LISTED_TABLES
        shown = progress.tables if all_fit or not unfinished else unfinished
        shown = shown[: self.LISTED_TABLES]
        rate = (rows - first_rows) / max(now - first_seconds, 0.001)
        for table in shown:
            drawn.add_row(*_table_cells(table, rate))
        hidden = len(progress.tables) - len(shown)
        if hidden:
            drawn.add_row(f"… and {hidden} more", "", "", "", "", "")
        steered = "PAUSED" if progress.paused else "no splits are read" if progress.snapshot_stopped else ""
        if progress.phase == "snapshot":
            return Group(drawn, Text(f"{steered}, by a signal")) if steered else Group(drawn)
        lag = "caught up" if progress.caught_up else f"lag {_duration(progress.lag_seconds)}"
        phase = f"{steered} · {progress.phase}" if steered else progress.phase
        line = f"{phase} · epoch {progress.committed_epoch} · {progress.changes:,} changes · {lag}"
        last_line = Text(f"{line} · {progress.position}")
        return Group(last_line) if progress.phase == "stream" else Group(drawn, last_line)


def _table_cells(table: TableProgress, rows_per_second: float) -> tuple[str, ...]:
    share = 1.0 if table.complete else table.share
    width = 24
    filled = round(share * width)
    total = "?" if table.splits_total is None else f"{table.splits_total:,}"
    left = None
    if not table.complete and table.estimated_rows and rows_per_second > 0:
        left = max(0.0, (table.estimated_rows - table.rows) / rows_per_second)
    return (
        table.table,
        "━" * filled + "─" * (width - filled),
        f"{table.splits_done + table.splits_published:,}/{total}",
        f"{table.rows:,}",
        f"{rows_per_second:,.0f}",
        "done" if table.complete else _duration(left),
    )


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def open_events() -> Iterator[Events]:
    """Bars if stdout is a terminal, else JSON lines."""
    if not sys.stdout.isatty():
        yield JsonEvents()
        return
    with Live(console=Console(markup=False, emoji=False), refresh_per_second=4, transient=False) as live:
        yield TerminalEvents(live)
