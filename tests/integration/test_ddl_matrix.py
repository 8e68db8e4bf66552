"""Kinds of DDL, each on a live table with writes before and after it: the copy is equal in the end, or the table is gone. The
outcomes are the table in docs/schema-changes.md; `TIDEMARK_WRITE_DOCS=1` writes it (with `EVERY_SERVER=1` for all servers)."""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.ddl_kinds import Kind, kinds_of
from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.state import failpoints
from tidemark.state.failpoints import FailpointError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]
PAGE = Path(__file__).parents[2] / "docs" / "schema-changes.md"
NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL"}
OUTCOMES = {None: "nothing to do", "altered": "followed", "left": "read again", "parked": "parked", "joined": "joins"}
PARTS = 4
POINTS = (
    "planner.after_plan",
    "log.before_report",
    "sink.before_commit",
    "sink.after_commit",
    "driver.epoch_written",
    "sink.after_adding",
    "sink.key_replaced",
    "sink.after_key",
    "schema.before_altered",
    "schema.after_altered",
    "tables.before_joined",
    "tables.after_joined",
    "signals.joined",
)


def job_of(database: Database, target: Database, folder: Path) -> Path:
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    source = source_of(database, on_table_error="park", tables=[f"{database.schema}.k*"])
    return write_job(folder, source=source, checkpoint=str(folder / "checkpoint"), sink=sink)


def numbered(kinds: Sequence[Kind]) -> list[tuple[str, Kind]]:
    return [(f"k{number:02}", kind) for number, kind in enumerate(kinds)]


def create(database: Database, kinds: Sequence[Kind]) -> None:
    for table, kind in numbered(kinds):
        early = [text for text in kind.setup if text.startswith("CREATE TYPE")]
        late = [text for text in kind.setup if text not in early]
        if kind.columns is not None:
            statements = [*early, "CREATE TABLE {t} (" + kind.columns + ")", *late, kind.rows]
            database.execute(*(text.replace("{t}", table) for text in statements))


def change(database: Database, kinds: Sequence[Kind]) -> None:
    for table, kind in numbered(kinds):
        statements = (*(kind.before if kind.columns is not None else ()), *kind.ddl, *kind.after)
        for text in statements:
            database.execute(text.replace("{t}", table))


def columns_of(database: Database, table: str) -> list[str]:
    generated = "AND is_generated = 'NEVER'" if database.kind == "postgres" else ""
    query = (
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_schema = '{database.schema}' AND table_name = '{table}' {generated} ORDER BY ordinal_position"
    )
    return [name for (name,) in database.query(query)]


def rows_of(database: Database, table: str, columns: Sequence[str]) -> list[tuple[str, ...]]:
    return sorted(tuple(map(str, row)) for row in database.query(f"SELECT {', '.join(columns)} FROM {table}"))


def assert_equal(source: Database, target: Database, kinds: Sequence[Kind]) -> None:
    wrong = []
    for table, kind in numbered(kinds):
        for name in [*([] if kind.gone or kind.parked else [table]), *(f"{table}{suffix}" for suffix in kind.now)]:
            columns = columns_of(source, name)
            if not set(columns) <= set(columns_of(target, f"copy_{name}")):
                wrong.append((kind.what, name, columns, columns_of(target, f"copy_{name}")))
            elif (expected := rows_of(source, name, columns)) != (found := rows_of(target, f"copy_{name}", columns)):
                wrong.append((kind.what, name, expected, found))
    assert not wrong, "\n".join(map(str, wrong))


def outcomes(database: Database, kinds: Sequence[Kind], found: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    by_table: dict[str, str] = {}
    for event, facts in found:
        if event in OUTCOMES and (event != "joined" or facts["table"] not in by_table):
            by_table[facts["table"]] = event
    return {kind.what: OUTCOMES[by_table.get(f"{database.schema}.{table}")] for table, kind in numbered(kinds)}


def target_of(database: Database, request: pytest.FixtureRequest) -> Database:
    target: Database = request.getfixturevalue(f"{database.kind}_database")
    return target


@pytest.mark.servers_in_turn(always="postgres18_server")  # MySQL and MariaDB have the same kinds
@pytest.mark.parametrize("part", range(PARTS))  # after each change, a job looks at all of its tables
def test_each_kind_ends_equal(
    part: int, any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    database, notes = any_source_database, Notes()
    target, kinds = target_of(database, request), kinds_of(database.kind)[part::PARTS]
    create(database, kinds)
    job = job_of(database, target, tmp_path)
    run_epochs(job)
    change(database, kinds)
    run_epochs(job, notes=notes)
    run_epochs(job)  # tables that were created join at a start
    assert_equal(database, target, kinds)
    for table, kind in numbered(kinds):
        if not kind.gone and not kind.parked:
            database.execute(f"UPDATE {table} SET name = 'later'")
    run_epochs(job)
    assert_equal(database, target, kinds)
    compare_with_page(database, outcomes(database, kinds, notes.found))


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("seed", range(3))
def test_each_kind_ends_equal_through_deaths(
    seed: int,
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, dice = any_source_database, random.Random(seed)
    target = target_of(database, request)
    kinds = dice.sample(kinds_of(database.kind), 12)
    create(database, kinds)
    job = job_of(database, target, tmp_path)
    armed = tmp_path / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    run_epochs(job)
    change(database, kinds)
    for point in dice.sample(POINTS, len(POINTS)):
        (armed / point).write_text("raise")
        try:
            run_epochs(job)
        except FailpointError:
            continue
        (armed / point).unlink(missing_ok=True)
    run_epochs(job)
    run_epochs(job)
    assert_equal(database, target, kinds)


def compare_with_page(database: Database, found: dict[str, str]) -> None:
    """Compares the outcomes with the page's column of the server."""
    text = PAGE.read_text()
    head, begin, rest = text.partition("| change |")
    lines = (begin + rest).splitlines()
    servers = list(NAMES.values())
    rows: dict[str, list[str]] = {}
    for line in lines[2:]:
        if not line.startswith("|"):
            break
        what, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        rows[what] = cells
    tail = lines[2 + len(rows) :]
    column = servers.index(NAMES[database.kind])
    if os.environ.get("TIDEMARK_WRITE_DOCS"):
        for what, outcome in found.items():
            rows.setdefault(what, ["–"] * len(servers))[column] = outcome
        written = [f"| change | {' | '.join(servers)} |", "|---|---|---|---|"]
        written += [f"| {what} | {' | '.join(cells)} |" for what, cells in rows.items()]
        PAGE.write_text(head + "\n".join([*written, *tail]) + "\n")
        return
    assert {what: rows[what][column] for what in found} == found
