"""The catalogue: one page about many jobs, with a link to the page of each. Jobs that need somebody come first."""

from dataclasses import dataclass
from typing import Any

from tidemark.jobs.monitoring.ending import Ending
from tidemark.jobs.monitoring.run_record import state_of
from tidemark.jobs.monitoring.times import time_text
from tidemark.jobs.report.facts import ReportFacts
from tidemark.jobs.report.page import PHASES, duration, size
from tidemark.jobs.report.templates import rendered
from tidemark.jobs.tables.parking import DROPPED
from tidemark.state.phase import Phase
from tidemark.state.run_state import RunState

_NONE = "–"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One job. `file`: its job file. `found`: what its checkpoint says, None if it was never started; or why that can't be
    read. `link`: the relative URL of its page, "" without one."""

    file: str
    name: str
    found: ReportFacts | Ending | None
    link: str = ""
    is_paused: bool = False


def render_catalogue(entries: list[CatalogueEntry], now_us: int) -> str:
    """The page. `now_us`: microseconds since 1970."""
    rows = sorted((_row(entry, now_us) for entry in entries), key=lambda row: (row["rank"], row["name"], row["file"]))
    counts = {
        "Jobs": len(rows),
        "Running": sum(row["state"] == "running" for row in rows),
        "In trouble": sum(row["mood"] == "bad" for row in rows),
        "Parked tables": sum(row["parked"] for row in rows if row["is_parked"]),
    }
    tiles = [
        {"id": label.lower().replace(" ", "-"), "label": label, "value": f"{count:,}"}
        for label, count in counts.items()
    ]
    about = f"as of {time_text(now_us)}"
    return rendered("catalogue.html.jinja", about=about, tiles=tiles, jobs=rows)


def _row(entry: CatalogueEntry, now_us: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "file": entry.file, "link": entry.link}
    row |= dict.fromkeys(("phase", "tables", "live", "parked", "lag", "exit_code"), _NONE)
    row |= dict.fromkeys(("since", "behind", "reason"), "") | {"is_parked": False}
    match entry.found:
        case None:
            return row | {"state": "never started", "mood": "", "rank": 2}
        case Ending() as why:
            return row | {"state": "not readable", "mood": "bad", "rank": 0, "reason": why.last_line}
        case facts:
            row |= _of_tables(facts) | _of_run(facts, now_us, is_paused=entry.is_paused)
            return row | ({"mood": "bad", "rank": min(row["rank"], 1)} if row["is_parked"] else {})


def _of_run(facts: ReportFacts, now_us: int, *, is_paused: bool) -> dict[str, Any]:
    run = facts.run
    if run is None:
        return {"state": "unknown", "mood": "", "rank": 2, "reason": "The record of its newest run is lost."}
    row: dict[str, Any] = {"since": time_text(run.seen_us)}
    match state_of(run, now_us):
        case RunState.DEAD:
            return row | {"state": "DEAD", "mood": "bad", "rank": 0, "reason": "Remedy: start the job again."}
        case state if not state.is_over:
            row |= {"state": "paused" if is_paused else "running", "since": f"since {time_text(run.started_us)}"}
            return row | {"mood": "" if is_paused else "good", "rank": 3}
        case _:
            row |= {"exit_code": run.exit_code}
            if run.exit_code == 0:
                return row | {"state": "ended", "mood": "good", "rank": 3}
            return row | {"state": "stopped", "mood": "bad", "rank": 0, "reason": f"{run.cause} Remedy: {run.remedy}"}


def _of_tables(facts: ReportFacts) -> dict[str, Any]:
    progress = facts.progress
    parked = sum(left.is_parked and left.why != DROPPED for left in facts.state.left)
    told: dict[str, Any] = {"tables": len(facts.tables) + parked, "live": 0, "parked": parked, "is_parked": parked > 0}
    if progress is None:
        return told | {"phase": PHASES["starting"]}
    is_known = progress.lag_seconds is not None and progress.phase != Phase.DONE.value
    return told | {
        "phase": PHASES[progress.phase],
        "live": sum(table.progress.complete for table in facts.tables),
        "lag": duration(progress.lag_seconds) if is_known and progress.lag_seconds is not None else _NONE,
        "behind": "" if progress.lag_bytes is None else f"{size(progress.lag_bytes)} behind",
    }
