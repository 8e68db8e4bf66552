"""Every type from a real server, half by SELECT and half by log, through the readers into every sink: the target's
values read back as the source's own."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.all_types import create_all_types, insert_edge_rows
from tests.support.change_parts import part
from tests.support.mysql_snapshot import SourceTable
from tests.support.reference_rows import reference_rows
from tests.support.servers import Database
from tests.support.sink_state import MIRRORS, make_case, sorted_rows
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.readers.snapshot.publish import publish
from tidemark.state.checkpoint.store import open_store
from tidemark.state.table import Column

pytestmark = pytest.mark.integration

NO_ENUM_ERROR = "UPDATE all_types SET enum_plain = NULL WHERE enum_plain = 0"
"""A strict ENUM takes no other texts than its labels."""
NO_FIRST_SECOND = "UPDATE all_types SET {0} = NULL WHERE {0} < FROM_UNIXTIME(1)"
"""A second of 1970: fractions of it are TIMESTAMPs in MariaDB alone."""
TOO_MANY_DECIMALS = ("decimal_38_38", "decimal_65_38")
"""MySQL has at most 30, MariaDB 38."""


def insert_rows(database: Database, first_id: int, target: str) -> None:
    """Inserts rows without the values that the target cannot store, which docs/sinks.md names."""
    insert_edge_rows(database.connect(), first_id=first_id, nul=target != "postgres")
    if target in {"mysql", "mariadb"}:
        database.execute(NO_ENUM_ERROR)
    if target == "mysql":
        database.execute("SET time_zone = '+00:00'", *(NO_FIRST_SECOND.format(f"timestamp_{i}") for i in range(1, 7)))


@pytest.mark.pitfall(37)
@pytest.mark.parametrize("kind", ["parquet", *MIRRORS])
@pytest.mark.parametrize("source", ["mysql", "mariadb"])
def test_what_is_written_reads_back(
    source: Literal["mysql", "mariadb"], kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    case = make_case(kind, request, source=source)
    from_database: Database = request.getfixturevalue(f"{source}_database")
    connection = from_database.connect()
    create_all_types(connection)
    insert_rows(from_database, 0, kind)
    table = SourceTable(from_database, "all_types")
    if (source, kind) == ("mariadb", "mysql"):
        table.schema = load_schema(connection, table.table, exclude_columns=TOO_MANY_DECIMALS)
    schemas = {(table.schema.table, table.schema.version): table.schema}
    case.sink.prepare(case.job, [table.schema])
    read = table.read()
    published = publish(open_store(str(tmp_path)), 1, table.split(), read, table.schema)
    case.write(part(1, "s1", [(table.schema, batch) for batch in published.batches]), schemas=schemas)
    insert_rows(from_database, 1000, kind)
    case.write(part(2, "log", [(table.schema, batch) for batch in table.batches(table.anchor)]), schemas=schemas)
    reference = reference_rows(from_database.connect(), table.schema)
    held, expected = case.rows(table.schema), sorted_rows(table.schema, [list(row.values()) for row in reference])
    assert [row[0] for row in held] == [row[0] for row in expected]
    different = [
        (row[0], column.name, found, value)
        for row, right in zip(held, expected, strict=True)
        for column, found, value in zip(table.schema.captured, row, right, strict=True)
        if not _same(kind, column, found, value)
    ]
    assert not different


def _same(kind: str, column: Column, found: Any, value: Any) -> bool:
    """Compares values except for what docs/sinks.md says: MySQL's JSON makes doubles of decimals, MariaDB drops the
    sign of zero."""
    if kind == "mysql" and column.source_type == "json" and value is not None:
        return bool(json.loads(found) == json.loads(value))
    if kind == "mariadb" and isinstance(value, float) and value == 0:
        return bool(found == 0)
    return repr(found) == repr(value)
