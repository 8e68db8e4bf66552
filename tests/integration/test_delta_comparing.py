"""Every wrong row of a Delta table is found by comparing it with expected rows, in both styles, and no correct one."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.change_parts import (
    DELETE,
    INSERT,
    NOTES,
    UNCHANGED,
    UPDATE,
    column,
    log_part,
    rows,
    snapshot_part,
)
from tests.support.delta import write_epochs
from tidemark.conf.tables import TableName
from tidemark.sinks.comparing import Comparisons, Key
from tidemark.sinks.delta.locations import FolderLake
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.delta.tables import Style
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.copied_range import CopiedRange
from tidemark.state.integer_range import IntegerRange
from tidemark.state.table import TableId, TableSchema

pytestmark = pytest.mark.integration

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000001", "lake")
TYPED = TableSchema(
    TableId("shop", "typed"),
    1,
    (
        column("id", "bigint unsigned", "decimal(20,0)", key=True),
        column("text, if any", "varchar(9)", "string"),
        column("small", "tinyint", "int8"),
        column("whole", "bigint", "int64"),
        column("single", "float", "float32"),
        column("exact", "double", "float64"),
        column("price", "decimal(38,9)", "decimal(38,9)"),
        column("flag", "tinyint(1)", "bool"),
        column("bytes", "varbinary(9)", "binary"),
        column("day", "date", "date32"),
        column("local", "datetime(6)", "timestamp"),
        column("at", "timestamp(6)", "timestamptz"),
        column("vector", "vector(2)", "list<float32>"),
        column("long", "text", "string"),
    ),
    ("id",),
)
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
MICROS = 86_400_000_000
VALUES: list[tuple[Any, ...]] = [
    (0, "", -128, -(2**63), -0.0, -0.0, None, False, b"", FIRST_DAY, FIRST_DAY * MICROS, FIRST_DAY * MICROS, [], ""),
    (2**64 - 1, "a/b %", 127, 2**63 - 1, 3.4e38, 5e-324, 10**28, True, b"\0,N", LAST_DAY, LAST_DAY * MICROS + 1,
     LAST_DAY * MICROS + 1, [1.5, None], "a,N\0'\N{PILE OF POO}"),
    (7, "N", 0, 0, 0.1, 0.1, 0, True, b"N", -200_000, -200_000 * MICROS - 1, -1, [-0.0], "N"),
    (8, None, 1, 1, 1.0, float("nan"), -1, False, b"\xff", 0, 0, 0, [float("nan")], "\\"),
    (9, *[None] * 13),
]  # fmt: skip


def note(number: int, stars: int, body: Any = UNCHANGED, size: Any = UNCHANGED) -> tuple[Any, ...]:
    return number, "en", stars, body, b"scan", size


def gone(number: int) -> tuple[Any, ...]:
    return DELETE, (number, "en", None, None, None, None)


def whole(numbers: Sequence[int]) -> list[tuple[Any, ...]]:
    return [note(number, number, f"body {number}", None) for number in numbers]


def found(
    comparisons: Comparisons, schema: TableSchema, expected: Sequence[Any], keys: Collection[Key] | None = None
) -> dict[str, set[str]]:
    """The ids of the rows that differ, by kind. The ranges are looked through for surplus rows as one."""
    kinds: dict[str, set[str]] = {}
    place = schema.key.index("id")
    with comparisons(keys) as copy:
        copy.stage([rows(schema, [(INSERT, values) for values in expected], snapshot=True)])
        assert copy.row_count == len(expected)
        everywhere = CopiedRange.of_integers(IntegerRange(("id",), (-(2**62),), (2**65,)))
        surplus = copy.surplus(None if schema is NOTES else everywhere, 100)
        for pair in copy.differing() + surplus:
            kind = "missing" if pair.held is None else "surplus" if pair.expected is None else "different"
            if keys is None or pair.key in keys:
                kinds.setdefault(kind, set()).add(pair.key[place])
        copy.keep_keys()
        assert copy.surplus_of_all(100) == surplus
    return kinds


DAMAGE = {
    "mirror": [
        "UPDATE {copy} SET body = CASE WHEN id = 7 THEN 'x' ELSE body END, stars = CASE WHEN id = 2 THEN 2 ELSE stars END",
        "DELETE FROM {copy} WHERE id = 8",
        "INSERT INTO {copy} BY NAME SELECT * EXCEPT (id), explode(array(1, 3, 99)) AS id FROM {copy} WHERE id = 1",
    ],
    "changelog": [
        "UPDATE {copy} SET body = 'x' WHERE id = 7",
        "DELETE FROM {copy} WHERE id = 8 OR id = 2 AND NOT _is_snapshot OR id = 3 AND _change_type = 'delete'",
        "INSERT INTO {copy} BY NAME SELECT * EXCEPT (id), explode(array(1, 99)) AS id FROM {copy} WHERE id = 1",
    ],
}
"""A changed cell (7), a stale row (2), a missing row (8), a row whose deletion is lacking (3), a row of nobody (99), and a row
that is there twice (1), which is one change in a changelog."""


@pytest.mark.parametrize("style", ["mirror", pytest.param("changelog", marks=pytest.mark.every_server)])
def test_every_wrong_row_is_found_and_no_other(style: Style, delta_session: SparkSession, tmp_path: Path) -> None:
    by = {TableName("shop", "typed"): ("text, if any",)}
    lake, checkpoint = FolderLake(f"{tmp_path}/lake"), LocalStore(str(tmp_path / "checkpoint"))
    sink = DeltaSink(lake, style, by, checkpoint, lambda: delta_session)
    schemas = {(schema.table, 1): schema for schema in (NOTES, TYPED)}
    sink.prepare(JOB, [NOTES, TYPED])

    def write(*items: Any) -> None:
        write_epochs(sink, JOB, items, schemas)

    write(*snapshot_part(1, 1, NOTES, whole(range(1, 10))), *snapshot_part(1, 2, TYPED, VALUES))
    write(*log_part(2, (NOTES, [(UPDATE, note(2, 9)), gone(3), gone(4), (INSERT, note(14, 9))])))
    expected = [*whole([1, 5, 6, 7, 8, 9]), note(2, 9, "body 2", None), note(14, 9, "body 4", None)]
    copy = sink.lake.location_of(NOTES.table).relation
    for statement in DAMAGE[style]:
        delta_session.sql(statement.format(copy=copy))
    with sink.comparable(NOTES) as comparisons:
        twice = {"1"} if style == "mirror" else set()
        assert found(comparisons, NOTES, expected) == {
            "different": {"2", "7"} | twice, "missing": {"8"}, "surplus": {"3", "99"},
        }  # fmt: skip
        write(*log_part(3, (NOTES, [(UPDATE, note(5, 7)), gone(6), gone(9), (INSERT, note(19, 9))])))
        expected = [*whole([1, 7, 8]), *(note(n, 9, f"body {n}", None) for n in (2,)), note(14, 9, "body 4", None)]
        expected += [note(5, 7, "body 5", None), note(19, 9, "body 9", None)]
        suspects = {("en", str(number)) for number in (5, 6, 7, 8, 9, 19, 99)}
        for _ in range(2):
            assert found(comparisons, NOTES, expected, suspects) == {
                "different": {"7"}, "missing": {"8"}, "surplus": {"99"},
            }  # fmt: skip
    with sink.comparable(TYPED) as comparisons:
        assert found(comparisons, TYPED, VALUES) == {}
        for place in range(1, len(TYPED.captured)):
            others = [list(values) for values in VALUES]
            others[1][place] = VALUES[0][place]
            assert found(comparisons, TYPED, others) == {"different": {str(2**64 - 1)}}, TYPED.captured[place].name
