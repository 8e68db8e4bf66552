"""Signals by SQL: rows of a table of the source (`signals.table`) become signals of the job, each once (docs/adr/0049).

    a look at the table → rows with new ids → each is a durable signal, which names its row → the job follows it as any other

What was taken follows from the signals alone, so nothing is left half done by a driver that dies. Anybody who may insert rows
writes their text. So it is checked as the arguments of `tidemark signal` are, and no text stops the job.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName, parse_table_name
from tidemark.jobs.monitoring.events import Events
from tidemark.jobs.signals.requests import signals_about, signals_that_set
from tidemark.jobs.sources import read_signal_rows
from tidemark.readers.signal_rows import MAX_CHARACTERS, SignalRow, unusable
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError, SourceUnavailableError, TidemarkError
from tidemark.state.failpoints import failpoint
from tidemark.state.job_state import JobState
from tidemark.state.signals import FirstRows, Signal, SignalKind, SourceRow
from tidemark.state.table import TableId

LOOK_SECONDS = 3.0
"""The time between two looks at the table while the job runs."""
MAX_ID_CHARACTERS = 200
MAX_TYPE_CHARACTERS = 40

_ALLOWED: dict[str, tuple[str, ...]] = {
    "resnapshot": ("table", "keys", "where"),
    "pause": ("table",),
    "resume": ("table",),
    "stop-snapshot": ("table",),
}


class SignalTable:
    """One per run, of a job with a signal table. `look` is called often, by the thread that holds the job; another thread asks
    the source, because an answer may take long."""

    def __init__(self, job: JobFile, name: TableName) -> None:
        self._job = job
        self._table = TableId(name.database, name.name)
        self._looked_at = time.monotonic()
        self._looking: threading.Thread | None = None
        self._found: Sequence[SignalRow] | TidemarkError | None = None
        self._is_loaded = False
        self._taken = dict[str, str]()
        """The digests of the rows that are signals, or never will be, by their ids."""
        self._problem = ""
        self._told = set[str]()

    def look(self, events: Events) -> None:
        """Takes the rows of the newest look, and begins another one if it is time for it. Only the lease's holder may."""
        if self._looking is not None and not self._looking.is_alive():
            self._looking = None
            self._take(events)
        if self._looking is None and time.monotonic() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._looking = threading.Thread(target=self._ask, name="signal table", daemon=True)
            self._looking.start()

    def look_now(self, events: Events) -> None:
        """Looks at the table at once, and takes its rows. Only the lease's holder may."""
        if self._looking is None:
            self._ask()
            self._take(events)

    def _ask(self) -> None:
        try:
            self._found = read_signal_rows(self._job, self._table)
        except TidemarkError as error:
            self._found = error
        except Exception as error:  # noqa: BLE001 -- whatever the table is, the job goes on
            self._found = unusable(self._table, type(error).__name__)

    def _take(self, events: Events) -> None:
        found = self._found
        if isinstance(found, SourceUnavailableError):
            # The job's own connections tell of an outage.
            logging.getLogger("tidemark").debug("the signal table can't be read: %s", found)
            return
        if isinstance(found, TidemarkError):
            self._warn(events, f"{found.message} The job continues. Remedy: {found.remedy}")
            return
        missing = (
            "" if found is not None else f"There is no signal table {self._table}, or it is hidden from the account."
        )
        self._warn(events, missing)
        checkpoint = Checkpoint.at(self._job.checkpoint)
        rows = self._rows(found or (), events)
        if not self._is_loaded:
            self._load(checkpoint, rows, events)
        for row_id in rows.keys() & self._taken.keys():
            if rows[row_id].digest != self._taken[row_id]:
                text = f"Row {row_id} of {self._table} was changed, or its id is used again, which is no signal."
                self._tell(events, f"{text} Insert a row with an id that was never used.")
        new = [row for row in rows.values() if row.id not in self._taken]
        state = checkpoint.job_state() if new else None
        for row in sorted(new, key=lambda row: _order(row.id)):
            assert state is not None, "the job has started"
            signal = signal_of(self._job, state, self._table, row)
            number = checkpoint.create_signal(signal)
            failpoint("signals.row_taken")
            self._taken[row.id] = row.digest
            what = signal.kind if signal.kind == "refused" else row.type
            text = (
                f"Row {row.id} of {self._table} is signal {number} ({what}). tidemark signal JOB.yaml list tells more."
            )
            events.note("signal", signal=number, row=row.id, text=text)

    def _rows(self, found: Sequence[SignalRow], events: Events) -> dict[str, "_Row"]:
        """Returns the rows by id, and tells if others have none that can be used."""
        rows = dict[str, _Row]()
        for row in found:
            if row.id and len(row.id) <= MAX_ID_CHARACTERS and row.id.isprintable():
                rows[row.id] = _Row(row.id, row.type or "", row.data or "")
        if len(rows) < len(found):
            self._tell(events, f"Rows of {self._table} without an id of its own, of printable text, are no signals.")
        return rows

    def _load(self, checkpoint: Checkpoint, rows: dict[str, "_Row"], events: Events) -> None:
        """Reads which rows were taken. The rows at the job's first look are noted durably: they are not signals."""
        first = checkpoint.first_rows(str(self._table))
        if first is None:
            first = FirstRows(str(self._table), tuple((row.id, row.digest) for row in rows.values()))
            checkpoint.create_first_rows(first)
            failpoint("signals.first_rows")
            if rows:
                text = f"{self._table} has {len(rows):,} rows from before the job's first look. They are no signals."
                events.note("warning", table=str(self._table), text=text)
        self._taken = dict(first.ids)
        signals = [signal for signal, _ in checkpoint.signals().values()]
        mine = [signal.row for signal in signals if signal.row is not None and signal.row.table == str(self._table)]
        self._taken |= {row.id: row.digest for row in reversed(mine)}
        self._is_loaded = True

    def _warn(self, events: Events, problem: str) -> None:
        """Tells a problem of the whole table once, until it is gone."""
        if problem and problem != self._problem:
            events.note("warning", table=str(self._table), text=problem)
        self._problem = problem

    def _tell(self, events: Events, text: str) -> None:
        """Tells of rows once."""
        if text not in self._told:
            self._told.add(text)
            events.note("warning", table=str(self._table), text=text)


@dataclass(frozen=True, slots=True)
class _Row:
    id: str
    type: str
    data: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.type}\0{self.data}".encode()).hexdigest()[:16]


def _order(row_id: str) -> tuple[int, int, str]:
    """Numbers by their value, before all other ids."""
    return (0, int(row_id), "") if row_id.isascii() and row_id.isdigit() else (1, 0, row_id)


def signal_of(job: JobFile, state: JobState, table: TableId, row: _Row) -> Signal:
    """Returns the signal that a row asks for. One that can't be followed is `refused`."""
    type_ = row.type if row.type.isprintable() else "?"
    source_row = SourceRow(str(table), row.id, row.digest)
    try:
        wanted = _wanted(job, state, row)
    except JobFileError as error:
        why = f"{error.message} {error.remedy}"
    except (TidemarkError, OSError):
        raise  # the checkpoint can't be read
    except Exception as error:  # noqa: BLE001 -- anybody may have written the text: whatever it does, the job goes on
        why = f"It can't be understood ({type(error).__name__})."
    else:
        return replace(wanted, row=source_row)
    why = "".join(character if character.isprintable() else "?" for character in why)
    return Signal(None, time.time_ns() // 1000, "refused", type_[:MAX_TYPE_CHARACTERS], why, row=source_row)


def _wanted(job: JobFile, state: JobState, row: _Row) -> Signal:
    if len(row.data) > MAX_CHARACTERS:
        raise _wrong(f"Its data has more than {MAX_CHARACTERS:,} characters")
    data = _data_of(row.data)
    if row.type == "set":
        wanted = signals_that_set(job, [(key, _setting(value)) for key, value in data.items()])
    elif row.type in _ALLOWED:
        if unknown := sorted(data.keys() - set(_ALLOWED[row.type])):
            raise _wrong(f"Its data has {unknown[0]!r}. Allowed for {row.type}: {', '.join(_ALLOWED[row.type])}")
        where = None if data.get("where") is None else _text(data["where"])
        if where is not None and not job_allows_conditions(job):
            raise _wrong("signals.conditions of the job file is not true: rows may have no where")
        tables = [] if data.get("table") is None else [_table(_text(data["table"]))]
        given = data.get("keys")
        keys = [] if given is None else [_key(key) for key in (given if isinstance(given, list) else [given])]
        wanted = signals_about(job, state, cast(SignalKind, row.type), tables, keys=keys, where=where)
    else:
        raise _wrong(f"Its type must be one of {', '.join(_ALLOWED)}, set")
    if len(wanted) != 1:
        raise _wrong("It asks for more than one signal: give each range of keys, and each setting, a row of its own")
    return wanted[0]


def job_allows_conditions(job: JobFile) -> bool:
    return job.signals is not None and job.signals.conditions


def _data_of(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text or "{}", object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise _wrong("Its data is no JSON") from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise _wrong("Its data is no JSON object")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def _no_number(text: str) -> float:
    raise ValueError(text)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong("Its data has a value that is no printable text")
    return value


def _key(value: Any) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _setting(value: Any) -> str:
    if value is None:
        return "none"
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _text(value)


def _table(text: str) -> TableName:
    try:
        return parse_table_name(text)
    except ValueError as error:
        raise _wrong(f"{text!r} is no table: it {error}") from None


def _wrong(why: str) -> JobFileError:
    return JobFileError(f"{why}.", "Insert another row.")
