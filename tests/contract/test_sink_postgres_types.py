"""Every canonical value of a PostgreSQL source arrives in every sink as it is."""

import dataclasses

import pytest

from tests.support.change_parts import DELETE, INSERT, UPDATE, log_part, snapshot_part
from tests.support.every_postgres_type import EVERY_POSTGRES_TYPE, every_postgres_value
from tests.support.sink_state import SinkCase, any_sink, sorted_rows  # noqa: F401  # a fixture
from tidemark.sinks.mirror.sink import MirrorSink

SCHEMAS = {(EVERY_POSTGRES_TYPE.table, 1): EVERY_POSTGRES_TYPE}


@pytest.mark.pitfall(37)
def test_every_value_of_every_postgres_type(any_sink: SinkCase) -> None:  # noqa: F811
    if isinstance(any_sink.sink, MirrorSink):
        any_sink.sink = dataclasses.replace(any_sink.sink, source_kind="postgresql")
    values = every_postgres_value()
    any_sink.sink.prepare(any_sink.job, [EVERY_POSTGRES_TYPE])
    any_sink.write(snapshot_part(1, 1, EVERY_POSTGRES_TYPE, values), schemas=SCHEMAS)
    wanted = sorted_rows(EVERY_POSTGRES_TYPE, values)
    assert any_sink.rows(EVERY_POSTGRES_TYPE) == wanted
    changes = [(DELETE, values[0]), *[(UPDATE, row) for row in values[1:]], (DELETE, values[1]), (INSERT, values[0])]
    any_sink.write(log_part(2, (EVERY_POSTGRES_TYPE, changes)), schemas=SCHEMAS)
    assert any_sink.rows(EVERY_POSTGRES_TYPE) == sorted_rows(EVERY_POSTGRES_TYPE, [values[0], *values[2:]])
