"""A mirror's questions to the target's catalog: as few for many tables as for some."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.change_parts import INSERT, ORDERS, log_part
from tests.support.sink_state import SinkCase, mirror  # noqa: F401  # a fixture
from tidemark.sinks.mirror.ledger import LedgerSession
from tidemark.sinks.mirror.mysql.session import MySqlSession
from tidemark.sinks.mirror.postgres.session import PostgresSession
from tidemark.sinks.mirror.target import TargetName
from tidemark.state.table import TableId

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(128)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The queries and statements of all sessions from now on."""
    found: list[str] = []

    def listening(method: Any) -> Any:
        def told(self: LedgerSession, sql: str, *arguments: Any, **options: Any) -> Any:
            found.append(sql)
            return method(self, sql, *arguments, **options)

        return told

    for kind in (MySqlSession, PostgresSession):
        for name in ("query", "execute"):
            monkeypatch.setattr(kind, name, listening(getattr(kind, name)))
    return found


def tables(count: int) -> list[Any]:
    return [replace(ORDERS, table=TableId("shop", f"t{i}")) for i in range(count)]


def test_a_start_asks_no_more_for_many_tables(mirror: SinkCase, asked: list[str]) -> None:  # noqa: F811
    mirror.sink.prepare(mirror.job, tables(130))
    for count in (110, 130):
        asked.clear()
        assert [found for found in mirror.sink.check(tables(count), mirror.job) if found.is_problem] == []
        mirror.sink.prepare(mirror.job, tables(count))
        assert len(asked) < 60, asked


def test_few_and_many_tables_are_found_alike(mirror: SinkCase) -> None:  # noqa: F811
    mirror.sink.prepare(mirror.job, tables(130))
    session = mirror.sink.connect()
    schema = "public" if mirror.kind == "postgres" else mirror.place.name
    names = [TargetName(schema, f"shop_t{i}") for i in range(130)]
    mirror.place.execute(
        "CREATE TABLE refers (id bigint PRIMARY KEY, other bigint, UNIQUE (other))",
        "ALTER TABLE refers ADD CONSTRAINT other_fk FOREIGN KEY (other) REFERENCES shop_t7 (id)",
    )
    refers = TargetName(schema, "refers")
    found = session.inspect_all([*names, refers, TargetName(schema, "missing"), TargetName("nowhere", "shop_t1")])
    assert set(found) == {*names, refers}
    for name in (names[7], names[8], refers):
        assert session.inspect(name) == found[name]
    assert found[names[7]].foreign_keys == found[refers].foreign_keys == ("other_fk",)
    assert found[names[8]].foreign_keys == ()
    assert len(found[refers].unique_indexes) == 1
    session.close()


def test_a_part_of_the_log_asks_once_for_all_its_tables(mirror: SinkCase, asked: list[str]) -> None:  # noqa: F811
    schemas = tables(20)
    mirror.sink.prepare(mirror.job, schemas)
    asked.clear()
    known = {(schema.table, schema.version): schema for schema in schemas}
    rows = [(schema, [(INSERT, (1, "Ann", None, None, None))]) for schema in schemas]
    list(mirror.sink.writer(mirror.job).write(log_part(5, *rows), known))
    catalog = [sql for sql in asked if "pg_attribute a" in sql or "KEY_COLUMN_USAGE" in sql]
    assert 1 <= len(catalog) <= 2, catalog
