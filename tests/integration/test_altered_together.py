"""Tables that are altered together, such that their rows must be read again, leave the job together."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.jobs import startup
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]

TABLES = ("a", "b", "c", "longer", "wider", "same")


@pytest.mark.parametrize("point", [None, "tables.parked"])
def test_they_leave_at_the_first_change_and_no_other_table_does(
    any_source_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    point: str | None,
) -> None:
    """A table that got a column, or none, stays. A run that dies after the first one left takes the others out later."""
    source, target = any_source_database, postgres_database
    for table in TABLES:
        source.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(10))", f"INSERT INTO {table} VALUES (1, 'x')"
        )
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(source, on_table_error="park"), sink=sink)
    run_epochs(job)
    source.execute("ALTER TABLE longer ADD COLUMN w INT", "INSERT INTO longer VALUES (2, 'y', 2)")
    type_of = "ALTER COLUMN v TYPE" if source.server.kind == "postgres" else "MODIFY v"
    source.execute(f"ALTER TABLE wider {type_of} VARCHAR(20)", "INSERT INTO wider VALUES (2, 'y')")
    run_epochs(job)  # what the job knows of these tables' columns is not what the catalog says
    for table in ("a", "b", "c"):
        source.execute(f"ALTER TABLE {table} {type_of} VARCHAR(5)", f"INSERT INTO {table} VALUES (2, 'y')")
    source.execute("INSERT INTO longer VALUES (3, 'z', 3)", "INSERT INTO same VALUES (3, 'z')")
    calls: list[Any] = []
    leave = startup._leave
    monkeypatch.setattr(
        startup, "_leave", lambda error, *rest, **more: calls.append(error) or leave(error, *rest, **more)
    )
    if point is not None:
        die_at(job, point)
    run_epochs(job)
    assert len(calls) == (1 if point is None else 2), [(type(c).__name__, str(c)[:90]) for c in calls]
    left = {left.table.name for left in Checkpoint.at(str(tmp_path / "checkpoint")).left_before()}
    assert left == {"a", "b", "c"}
    for table in TABLES:
        query = f"SELECT * FROM {{}}{table} ORDER BY id"
        assert target.query(query.format("copy_")) == source.query(query.format("")), table
