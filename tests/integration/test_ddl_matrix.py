"""Kinds of DDL, each on a live table with writes before and after it: the copy is equal in the end, or the table is gone. The
outcomes are the table in docs/schema-changes.md; `TIDEMARK_WRITE_DOCS=1` writes it (with `EVERY_SERVER=1` for all servers)."""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.ddl_kinds import Kind, kinds_of
from tests.support.ddl_matrix import POINTS, assert_equal, change, create, job_of, numbered
from tests.support.epochs import Notes, run_epochs
from tests.support.servers import Database
from tidemark.state import failpoints
from tidemark.state.failpoints import FailpointError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]
PAGE = Path(__file__).parents[2] / "docs" / "schema-changes.md"
NAMES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL"}
OUTCOMES = {None: "nothing to do", "altered": "followed", "left": "read again", "parked": "parked", "joined": "joins"}
PARTS = 4


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
