"""Every canonical value arrives in every sink as it is, as a row of the snapshot and as a change."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.change_parts import DELETE, INSERT, UPDATE, log_part, snapshot_part
from tests.support.every_type import EVERY_TYPE, NOT_IN_POSTGRES, every_value
from tests.support.sink_state import DELTA, SinkCase, every_sink, sorted_rows  # noqa: F401  # a fixture
from tidemark.sinks.delta.locations import FolderLake

SCHEMAS = {(EVERY_TYPE.table, 1): EVERY_TYPE}


@pytest.mark.pitfall(37)
def test_every_value_of_every_type(every_sink: SinkCase, tmp_path: Path) -> None:  # noqa: F811
    if every_sink.kind == DELTA:  # no catalog of Spark's own takes the table's name
        every_sink.sink = replace(every_sink.sink, lake=FolderLake(str(tmp_path / "lake")))
    values = every_value(None if every_sink.kind == "postgres" else NOT_IN_POSTGRES)
    every_sink.sink.prepare(every_sink.job, [EVERY_TYPE])
    every_sink.write(snapshot_part(1, 1, EVERY_TYPE, values), schemas=SCHEMAS)
    held, wanted = every_sink.rows(EVERY_TYPE), sorted_rows(EVERY_TYPE, values)
    for row, expected in zip(held, wanted, strict=True):
        for found, value, column in zip(row, expected, EVERY_TYPE.captured, strict=True):
            if every_sink.kind == "mariadb" and isinstance(value, float) and value == 0:
                assert found == 0  # MariaDB stores no negative zero: its fields take the sign away
            else:
                assert repr(found) == repr(value), column.name  # repr, for -0.0 == 0.0
    changes = [*[(DELETE, row) for row in values[:2]], *[(UPDATE, row) for row in values[2:]], (INSERT, values[0])]
    every_sink.write(log_part(2, (EVERY_TYPE, changes)), schemas=SCHEMAS)
    assert every_sink.rows(EVERY_TYPE) == [wanted[0], *wanted[2:]]
