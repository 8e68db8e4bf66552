"""Changed rows are updated in the target where no other unique index forbids it: columns that only the target has keep their
values, and triggers see updates."""

from typing import Any

import pytest

from tests.support.change_parts import (
    DELETE,
    INSERT,
    NOTES,
    ORDERS,
    UNCHANGED,
    UPDATE,
    Change,
    column,
    log_part,
    snapshot_part,
)
from tests.support.sink_state import SinkCase, make_case, mirror, mirror_of_postgres, target_name  # noqa: F401  # fixtures
from tidemark.sinks.mirror import writer as mirror_writer
from tidemark.state.table import TableId, TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(92)]


def order(number: int, customer: str = "Ada") -> tuple[Any, ...]:
    return (number, customer, None, number, None)


def prepared(case: SinkCase, *more: str) -> SinkCase:
    """A copy of ORDERS with three rows and a column of the user, `seen`, which is 1 in all rows."""
    case.sink.prepare(case.job, [ORDERS])
    case.place.execute(f"ALTER TABLE {target_name(case, ORDERS)} ADD COLUMN seen int DEFAULT 0")
    for sql in more:
        case.place.execute(sql.format(target_name(case, ORDERS)))
    case.write(snapshot_part(1, 1, ORDERS, [order(1), order(2), order(3)]))
    case.place.execute(f"UPDATE {target_name(case, ORDERS)} SET seen = 1")
    return case


CHANGES: list[Change] = [
    (UPDATE, order(1, "Grace")),
    (DELETE, order(2)),
    (DELETE, order(3)),
    (INSERT, order(3, "back")),
    (INSERT, order(4)),
]
AFTER = [order(1, "Grace"), order(3, "back"), order(4)]


def seen(case: SinkCase) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = case.place.query(f"SELECT id, seen FROM {target_name(case, ORDERS)} ORDER BY id")
    return found


@pytest.mark.parametrize("chunk_bytes", [1, mirror_writer.CHUNK_BYTES])
def test_columns_of_the_user_keep_their_values(
    mirror: SinkCase,  # noqa: F811
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mirror_writer, "CHUNK_BYTES", chunk_bytes)
    copy = prepared(mirror)
    copy.write(log_part(2, (ORDERS, CHANGES[:2]), (ORDERS, CHANGES[2:])))
    assert copy.rows(ORDERS) == AFTER
    assert seen(copy) == [(1, 1), (3, 1), (4, 0)]
    copy.write(log_part(3, (ORDERS, [(UPDATE, order(1, "Grace"))])))  # nothing changes
    assert seen(copy)[0] == (1, 1)


@pytest.mark.parametrize(
    ("kind", "blocking"),
    [
        *[(kind, "ALTER TABLE {} ADD UNIQUE (placed_at)") for kind in ("mysql", "mariadb", "postgres")],
        ("postgres", "ALTER TABLE {} ADD EXCLUDE (placed_at WITH =)"),
        ("postgres", "CREATE RULE noted AS ON INSERT TO {} DO ALSO NOTIFY noted"),
        (
            "postgres",
            "ALTER TABLE {0} DROP CONSTRAINT shop_orders_pkey; ALTER TABLE {0} ADD PRIMARY KEY (id) DEFERRABLE",
        ),
        ("postgres", "ALTER TABLE {} ALTER id ADD GENERATED ALWAYS AS IDENTITY"),
    ],
)
def test_rows_are_deleted_and_inserted_where_updates_could_be_wrong(
    kind: str, blocking: str, request: pytest.FixtureRequest
) -> None:
    copy = prepared(make_case(kind, request), blocking)
    copy.write(log_part(2, (ORDERS, CHANGES)))
    assert copy.rows(ORDERS) == AFTER
    swapped = [(1, "Grace", None, 3, None), (3, "back", None, 1, None)]  # of the unique value
    copy.write(log_part(3, (ORDERS, [(UPDATE, row) for row in swapped])))
    assert copy.rows(ORDERS)[:2] == swapped
    assert seen(copy) == [(1, 0), (3, 0), (4, 0)]


def test_chains_of_keys(mirror: SinkCase) -> None:  # noqa: F811
    """UPDATE … SET id = id + 1: the column of the user stays with the key, not with the row."""
    copy = prepared(mirror)
    chain = [change for n in (3, 2, 1) for change in ((DELETE, order(n)), (INSERT, order(n + 1)))]
    copy.write(log_part(2, (ORDERS, chain)))
    assert copy.rows(ORDERS) == [order(2), order(3), order(4)]
    assert seen(copy) == [(2, 1), (3, 1), (4, 0)]


def test_triggers_see_updates(mirror: SinkCase) -> None:  # noqa: F811
    copy = prepared(mirror)
    copy.place.execute("CREATE TABLE heard (what varchar(20))")
    for what in ("update", "delete"):
        if copy.kind == "postgres":
            copy.place.execute(
                f"CREATE FUNCTION hear_{what}() RETURNS trigger LANGUAGE plpgsql AS "
                f"$$ BEGIN INSERT INTO heard VALUES ('{what}'); RETURN NULL; END $$",
                f"CREATE TRIGGER hear_{what} AFTER {what} ON {target_name(copy, ORDERS)} "
                f"FOR EACH ROW EXECUTE FUNCTION hear_{what}()",
            )
        else:
            copy.place.execute(
                f"CREATE TRIGGER hear_{what} AFTER {what} ON {target_name(copy, ORDERS)} "
                f"FOR EACH ROW INSERT INTO heard VALUES ('{what}')"
            )
    copy.write(log_part(2, (ORDERS, [(UPDATE, order(1, "Grace")), (DELETE, order(2)), (INSERT, order(9))])))
    assert sorted(copy.place.query("SELECT what FROM heard")) == [("delete",), ("update",)]


def test_values_that_the_log_left_out(mirror_of_postgres: SinkCase) -> None:  # noqa: F811
    copy = mirror_of_postgres
    copy.sink.prepare(copy.job, [NOTES])
    name = target_name(copy, NOTES)
    copy.place.execute(f"ALTER TABLE {name} ADD COLUMN seen int DEFAULT 0")
    copy.write(snapshot_part(1, 1, NOTES, [(1, "en", 5, "long", b"x", None)]))
    copy.place.execute(f"UPDATE {name} SET seen = 1")
    copy.write(log_part(2, (NOTES, [(UPDATE, (1, "en", 6, UNCHANGED, UNCHANGED, None))])))
    assert copy.rows(NOTES) == [(1, "en", 6, "long", b"x", None)]
    assert copy.place.query(f"SELECT seen FROM {name}") == [(1,)]


def test_table_whose_columns_are_all_its_key(mirror: SinkCase) -> None:  # noqa: F811
    columns = (column("a", "bigint", "int64", key=True), column("b", "bigint", "int64", key=True))
    schema = TableSchema(TableId("shop", "pairs"), 1, columns, ("a", "b"))
    schemas = {(schema.table, 1): schema}
    mirror.sink.prepare(mirror.job, [schema])
    mirror.write(log_part(1, (schema, [(INSERT, (1, 1)), (INSERT, (1, 2))])), schemas=schemas)
    mirror.write(log_part(2, (schema, [(UPDATE, (1, 1)), (DELETE, (1, 2))])), schemas=schemas)
    assert mirror.rows(schema) == [(1, 1)]
