"""The summary of a run: the event that ends its output, and the file of `--summary`."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tidemark.conf.redaction import redact_values
from tidemark.jobs.monitoring.ending import ending_of
from tidemark.jobs.monitoring.events import Events
from tidemark.state.errors import JobFileError


@dataclass(slots=True)
class RunSummary:
    """The work of a run. `rows` came from the snapshot and `changes` from the log, as the sink wrote them in this run.
    `bad_values`: the target can't hold them (sink.on_bad_value). `cause` and `remedy` are set if the run failed."""

    job: str = ""
    exit_code: int = 0
    interrupted: bool = False
    phase: str = ""
    epochs: int = 0
    rows: int = 0
    changes: int = 0
    bad_values: int = 0
    seconds: float = 0.0
    position: str = ""
    tables: list[dict[str, Any]] = field(default_factory=list)
    cause: str | None = None
    remedy: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields, without `cause` and `remedy` where there are none."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@contextmanager
def summarised(events: Events, path: Path | None) -> Iterator[RunSummary]:
    """The summary of the run inside, which fills it and notes `finished`. If the run raises, the last event is `failed`.

    Both ways the summary is written to `path`; an older file there is removed first. Raises what the run raises,
    JobFileError if `path` can't be written."""
    summary, began = RunSummary(), time.monotonic()
    try:
        if path is not None:
            _make_way(path)
        yield summary
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_of(error)
        summary.exit_code, summary.cause, summary.remedy = ending.exit_code, ending.cause, ending.remedy
        summary.seconds = round(time.monotonic() - began, 3)
        if path is not None:
            _write_after_failure(summary, path)
        events.note("failed", **summary.as_dict())
        raise
    if path is not None:
        _write(summary, path)


def _make_way(path: Path) -> None:
    if not path.resolve().parent.is_dir():
        raise JobFileError(f"--summary {path} is in a folder that does not exist.", "Create it, or name another file.")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise JobFileError(f"--summary {path} can't be written: {error.strerror}.", "Name another file.") from error


def _write(summary: RunSummary, path: Path) -> None:
    path.write_text(json.dumps(redact_values(summary.as_dict()), indent=2) + "\n")


def _write_after_failure(summary: RunSummary, path: Path) -> None:
    """An error of the file must not hide that of the run."""
    try:
        _write(summary, path)
    except OSError as error:
        logging.getLogger("tidemark").warning("--summary %s can't be written: %s", path, error.strerror)
