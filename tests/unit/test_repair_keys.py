"""The keys that differ are texts of the copy's server; a repair reads them as values."""

from datetime import datetime, timezone

import pytest

from tidemark.jobs.reconcile.repair import keys_of
from tidemark.state.table import Column, TableId, TableSchema

MOMENT = datetime(2024, 2, 29, 12, 30, 0, 250_000)


@pytest.mark.parametrize(
    ("arrow_type", "text", "value"),
    [
        ("timestamptz", "2024-02-29 12:30:00.25", MOMENT.replace(tzinfo=timezone.utc)),  # of MySQL
        ("timestamptz", "2024-02-29 12:30:00.25+00", MOMENT.replace(tzinfo=timezone.utc)),  # of PostgreSQL
        ("timestamptz", "0044-03-15 12:00:00+00 BC", None),
        ("timestamp", "2024-02-29 12:30:00.25", MOMENT),
        ("bool", "true", None),
    ],
)
def test_texts_of_both_servers_are_read(arrow_type: str, text: str, value: datetime | None) -> None:
    schema = TableSchema(TableId("shop", "at"), 1, (Column("at", "a type", arrow_type, True),), ("at",))
    found = keys_of(((text,),), schema)
    assert (None if found is None else found.column(0).to_pylist()) == (None if value is None else [value])
