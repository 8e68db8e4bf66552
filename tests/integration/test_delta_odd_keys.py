"""Mirrors in Delta whose keys have odd values: each row is found again by its key, and no other one."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.jobs.spark.sessions import SparkSessions

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

TEXTS = (
    "",
    " ",
    "a",
    "a ",
    " a",
    "A",
    "'",
    '"',
    "\\",
    "\\n",
    "a\nb",
    "a\r",
    "\t",
    "NULL",
    "null",
    "None",
    "%",
    "_",
    "a/b=c",
    "${a}",
    "é",
    "e\u0301",
    "\u200b",
    "\U0001f600",
    "\uffff",
    "1",
    "01",
)
NUL = ("\0", "a\0", "a\0b", "\0a")
BYTES = (b"", b"\0", b"\0\0", b" ", b"a", b"a\0", b"\xff", b"\xff\xfe", b"\\", b"'", b"\x80")
DECIMALS = ("0.000", "-0.001", "0.001", "-1.000", "1.000", "-9999999.999", "9999999.999")
DAYS = ("1000-01-01", "1582-10-04", "1582-10-15", "1899-12-31", "1970-01-01", "2026-03-29", "9999-12-31")
TIMES = (
    "2025-10-26 00:30:00.000000",  # Europe: the same local time twice, an hour apart
    "2025-10-26 01:30:00.000000",
    "2025-03-30 01:00:00.000001",
    "1970-01-01 00:00:01.000000",
    "2038-01-19 03:14:07.999999",
)


def _quoted(value: str | bytes, kind: str) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea" if kind == "postgres" else f"x'{value.hex()}'"
    text = value.replace("'", "''")
    return f"'{text}'" if kind == "postgres" else "'" + text.replace("\\", "\\\\") + "'"


def _mysql() -> dict[str, tuple[str, list[str]]]:
    texts = [_quoted(text, "mysql") for text in (*TEXTS, *NUL)]
    return {
        "texts": ("VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin", texts),
        "folded": ("VARCHAR(30) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_as_cs", texts[:11]),
        "bytes": ("VARBINARY(9)", [_quoted(value, "mysql") for value in BYTES]),
        "fixed": ("BINARY(2)", ["x'0000'", "x'2020'", "x'6100'", "x'6120'", "x'ffff'"]),
        "decimals": ("DECIMAL(10, 3)", list(DECIMALS)),
        "days": ("DATE", [f"'{day}'" for day in DAYS]),
        "moments": ("TIMESTAMP(6)", [f"'{time}'" for time in TIMES]),
        "times": ("DATETIME(6)", [f"'{time}'" for time in (*TIMES, *(f"{day} 00:00:00.000001" for day in DAYS))]),
        "bits": ("BIT(9)", ["0", "1", "256", "511"]),
        "labels": ("ENUM('a', '', 'NULL', 'b')", ["'a'", "''", "'NULL'", "'b'"]),
        "years": ("YEAR", ["0", "1901", "2155"]),
        "naturals": ("BIGINT UNSIGNED", ["0", "9223372036854775808", "18446744073709551615"]),
        "durations": ("TIME(6)", ["'-838:59:59'", "'-00:00:00.000001'", "'00:00:00'", "'838:59:59'"]),
    }


def _postgres() -> dict[str, tuple[str, list[str]]]:
    texts = [_quoted(text, "postgres") for text in TEXTS]
    return {
        "texts": ('text COLLATE "C"', texts),
        "fixed": ("char(3)", ["''", "'a'", "' a'", "'\\'", "'é'"]),
        "bytes": ("bytea", [_quoted(value, "postgres") for value in BYTES]),
        "decimals": ("numeric(10, 3)", list(DECIMALS)),
        "numbers": ("numeric", ["0", "-0.10", "1.5000", "'NaN'", "1e40", "-1e-40"]),
        "days": ("date", [f"'{day}'" for day in DAYS]),
        "moments": ("timestamptz", [f"'{time}+00'" for time in TIMES] + ["'0001-01-01 00:00:00+00'"]),
        "times": ("timestamp", [f"'{time}'" for time in TIMES]),
        "flags": ("boolean", ["true", "false"]),
        "uuids": ("uuid", ["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
        "durations": ("interval", ["'0'", "'-1 day'", "'1 month'", "'30 days 00:00:00.000001'"]),
        "networks": ("inet", ["'::1'", "'10.0.0.1'", "'10.0.0.1/8'"]),
    }


@pytest.fixture
def read(delta_session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)

    def rows(database: Database, table: str) -> list[Any]:
        copy = delta_session.read.format("delta").load(str(tmp_path / "lake" / f"{database.schema}.{table}"))
        return sorted(repr(tuple(row)) for row in copy.select("number", "version", "f").collect())

    return rows


def _changes(table: str, values: list[str]) -> Iterable[str]:
    """Each row is updated, deleted, deleted and inserted again, gets another key, or the key of the next one."""
    for number, value in enumerate(values):
        at = f"WHERE k = {value}"
        match number % 4:
            case 0:
                yield f"UPDATE {table} SET version = version + 1, f = -f {at}"
            case 1:
                yield f"DELETE FROM {table} {at}"
            case 2:
                yield f"DELETE FROM {table} {at}"
                yield f"INSERT INTO {table} VALUES ({value}, {number}, 50, -0e0)"
    for number in range(1, len(values) - 1, 4):
        yield f"UPDATE {table} SET k = {values[number]}, version = version + 1 WHERE k = {values[number + 1]}"


@pytest.mark.parametrize(
    ("source", "tables"),
    [
        ("mysql_database", ("texts",)),
        pytest.param("mysql_database", None, marks=pytest.mark.every_server),
        pytest.param("postgres18_database", None, marks=pytest.mark.every_server),
    ],
    ids=["mysql_texts", "mysql", "postgres"],
)
def test_rows_with_odd_keys(
    read: Callable[..., list[Any]],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    source: str,
    tables: tuple[str, ...] | None,
) -> None:
    database: Database = request.getfixturevalue(source)
    kinds = _postgres() if database.kind == "postgres" else _mysql()
    if database.kind != "postgres":
        database.execute("SET SESSION time_zone = '+00:00'")
    kinds = {table: kinds[table] for table in tables or kinds}
    for table, (kind, values) in kinds.items():
        database.execute(
            f"CREATE TABLE {table} (k {kind} PRIMARY KEY, number int, version int, f double precision)",
            *(f"INSERT INTO {table} VALUES ({value}, {number}, 0, 0)" for number, value in enumerate(values[:-2])),
        )
    sink = {"type": "delta", "path": "./lake", "style": "mirror"}
    job = write_job(tmp_path, source=source_of(database), sink=sink, snapshot={"split_rows": 4, "parallelism": 2})
    run_epochs(job)
    for last in (0, 1, 2):
        for table, (_, values) in kinds.items():
            rows = database.query(f"SELECT number, version, f FROM {table}")
            assert read(database, table) == sorted(map(repr, rows)), table
            there = values[: len(values) - 2 + last]
            if last < 2:
                database.execute(
                    f"INSERT INTO {table} VALUES ({values[len(there)]}, {len(there)}, 0, -0e0)", *_changes(table, there)
                )
        run_epochs(job)
