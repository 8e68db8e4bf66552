"""PostgreSQL's own log into mirrors: values that it leaves out of updates stay in the copies."""

import random

import pytest

from tests.support.change_parts import part
from tests.support.postgres_log import LoggedDatabase, logged_postgres  # noqa: F401  # a fixture
from tests.support.sink_state import SinkCase, mirror_of_postgres, sorted_rows  # noqa: F401  # a fixture
from tidemark.readers.postgres.pgoutput.reading import ReadOptions
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.state.change_batch import LOG_PART
from tidemark.state.log_range import LogRange

BIG = "(SELECT string_agg(md5(({0} + i)::text), '') FROM generate_series(1, 100) AS i)"
STATEMENTS = (
    "UPDATE t SET n = n + 1 WHERE id % 3 = {0} % 3",
    "UPDATE t SET body = NULL WHERE id = {0}",
    f"UPDATE t SET body = {BIG} WHERE id = {{0}}",
    "UPDATE t SET scan = scan || '\\x00' WHERE id % 7 = {0} % 7",
    "UPDATE t SET id = -id, n = {0} WHERE id % 5 = {0} % 5",
    "UPDATE t SET id = id + 1000 WHERE id = {0}; UPDATE t SET id = {0} WHERE id = {0} + 1; "
    "UPDATE t SET id = {0} + 1 WHERE id = {0} + 1000",
    "UPDATE t SET lang = lang || '{0}' WHERE id % 11 = {0} % 11",
    "DELETE FROM t WHERE id = {0}",
    f"INSERT INTO t VALUES ({{0}}, 'en', 0, {BIG}, {BIG}::bytea) ON CONFLICT DO NOTHING",
)


@pytest.mark.pitfall(61)
@pytest.mark.servers_in_turn("logged_postgres")
@pytest.mark.parametrize("chunk_bytes", [20_000, mirror_writer.CHUNK_BYTES])
def test_random_updates_leave_the_mirror_equal(
    logged_postgres: LoggedDatabase,  # noqa: F811
    mirror_of_postgres: SinkCase,  # noqa: F811
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    log, mirror, chance = logged_postgres, mirror_of_postgres, random.Random(chunk_bytes)
    log.execute(
        "CREATE TABLE t (id int, lang varchar(99), n int, body text, scan bytea, PRIMARY KEY (lang, id))",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER scan SET STORAGE EXTERNAL",
    )
    log.publish("t")
    log.execute(*(STATEMENTS[-1].format(number) for number in range(1, 41)))
    schema = log.schema("t")
    mirror.sink.prepare(mirror.job, [schema])
    left_out = 0
    for epoch in range(1, 5):
        for _ in range(4):
            statements = [chance.choice(STATEMENTS).format(chance.randint(1, 45)) for _ in range(chance.randint(1, 6))]
            log.execute("; ".join(statements))
        end = log.end()
        reader = log.reader(schema, options=ReadOptions(buffer_bytes=1 << 14))
        batches = [batch.rows for batch in reader.read(LogRange(log.start, end))]
        log.start = end
        left_out += sum(len(batch) - batch.column("_unchanged").null_count for batch in batches)
        mirror.write(part(epoch, LOG_PART, [(schema, batch) for batch in batches]), schemas={(schema.table, 1): schema})
        assert mirror.rows(schema) == sorted_rows(schema, log.query("SELECT * FROM t"))
    assert left_out > 50
