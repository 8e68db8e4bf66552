"""The drawing on a terminal: names of tables as they are."""

import io

import pytest

from tidemark.jobs.commands.drawing import console, table_of
from tidemark.jobs.monitoring.events import open_events
from tidemark.jobs.monitoring.progress import JobProgress, TableProgress

NAME = "shop.a[/b] [red]c:100:"
"""In rich's markup the first brackets are an error, the others a colour, and the end is a picture."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_s_name_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = Terminal()
    monkeypatch.setattr("sys.stdout", printed)
    monkeypatch.setenv("COLUMNS", "120")
    progress = JobProgress(
        mode="full+incremental",
        phase="snapshot",
        committed_epoch=1,
        position="0",
        lag_seconds=None,
        lag_bytes=None,
        epochs=1,
        epoch_seconds=1.0,
        changes=0,
        transactions=0,
        filtered_changes=0,
        reconnects=0,
        caught_up=False,
        tables=(TableProgress(NAME, 1, 2, 10, 20, complete=False),),
    )
    with open_events() as events:
        events.progress(progress)
    drawn = table_of(["table"])
    drawn.add_row(NAME)
    console().print(drawn)
    assert printed.getvalue().count(NAME) >= 2
