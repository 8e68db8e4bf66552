"""The report's facts as rows, from which its charts are drawn."""

from typing import Any

from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.report.facts import LogScale, ReportFacts
from tidemark.state.checkpoint.history import EpochStretch, SplitStretch

Record = dict[str, Any]

_MAX_COLUMNS = 600


def epoch_records(stretches: tuple[EpochStretch, ...]) -> list[Record]:
    """One record per stretch. Times are milliseconds since 1970. Rates are per second of the stretch's duration."""
    records = []
    span_us = stretches[-1].end_us - stretches[0].begin_us if stretches else 0
    least_us = span_us // _MAX_COLUMNS  # shorter columns would not be visible
    for one in stretches:
        lasted = one.seconds if one.first_epoch == one.last_epoch else (one.end_us - one.begin_us) / 1e6
        known = lasted > 0
        records.append(
            {
                "epochs": str(one.first_epoch)
                if one.first_epoch == one.last_epoch
                else f"{one.first_epoch} to {one.last_epoch}",
                "phase": one.phase,
                "begin": one.begin_us // 1000,
                "begin_text": time_text(one.begin_us),
                "end": one.end_us // 1000,
                "until": max(one.end_us, one.begin_us + least_us) // 1000,
                "rows": one.rows,
                "changes": one.changes,
                "filtered": one.filtered_changes,
                "transactions": one.transactions,
                "reconnects": one.reconnects,
                "rate": round((one.rows + one.changes) / lasted, 1) if known else None,
                "what": "rows copied" if one.phase == "snapshot" else "changes followed",
                "seconds": round(one.seconds / one.measured, 3) if one.measured else None,
                "lag": one.lag_seconds,
                "behind": one.lag_bytes,
            }
        )
    return records


def split_records(facts: ReportFacts) -> tuple[list[Record], LogScale]:
    """One record per stretch of splits, in key order, tables with the most splits first. `left` and `right` count splits,
    `low` and `high` are bytes of log."""
    places = [place for table in facts.splits.tables for one in table.stretches for place in _places(one)]
    if facts.last_high is not None:
        places.append(facts.last_high)
    scale = LogScale(facts.state, places)
    top = max(places, default=None)
    records: list[Record] = []
    for table in sorted(facts.splits.tables, key=lambda known: -sum(one.splits for one in known.stretches)):
        left = 0
        for one in sorted(table.stretches, key=lambda stretch: stretch.end is None):  # the open end comes first
            low = one.least_high if one.low is None else one.low
            records.append(
                {
                    "table": str(table.table),
                    "left": left,
                    "right": left + one.splits,
                    "splits": one.splits,
                    "range": f"{left + 1} – {left + one.splits}" if one.splits > 1 else f"{left + 1}",
                    "rows": one.rows,
                    "replayed": one.replayed,
                    "low": scale.bytes_since_start(low),
                    "high": scale.bytes_since_start(one.high),
                    "top": scale.bytes_since_start(top or one.high),
                    "low_text": scale.text(low),
                    "high_text": scale.text(one.high),
                    "gap": scale.bytes_since_start(top or one.high) - scale.bytes_since_start(one.high),
                }
            )
            left += one.splits
    return records, scale


def event_records(facts: ReportFacts) -> list[Record]:
    """All kept events, oldest first. `kind` decides colour and shape in the charts."""
    kinds = {"started": "start", "resumed": "start", "error": "error", "warning": "warning", "waiting": "warning"}
    events = [*facts.events.events]
    if facts.events.first is not None and facts.events.first not in events:
        events.insert(0, facts.events.first)
    found = [
        {
            "at": event.at_us // 1000,
            "at_text": time_text(event.at_us),
            "event": event.name,
            "kind": kinds.get(event.name, "end"),
            "text": " · ".join(text if name == "text" else f"{name} {text}" for name, text in event.facts),
        }
        for event in events
    ]
    found += [
        {
            "at": one.end_us // 1000,
            "at_text": time_text(one.end_us),
            "event": "reconnects",
            "kind": "reconnect",
            "text": f"{one.reconnects} reconnects of the log",
        }
        for one in facts.epochs.whole
        if one.reconnects
    ]
    return sorted(found, key=lambda record: record["at"])


def _places(one: SplitStretch) -> list[tuple[int, ...]]:
    return [place for place in (one.low, one.least_high, one.high) if place is not None]
