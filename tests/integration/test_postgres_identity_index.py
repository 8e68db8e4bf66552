"""Tables of PostgreSQL without a primary key whose replica identity is an index: its columns are their key (docs/adr/0089)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import before_the_next_epoch, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.remedies import run_through, what_is_told
from tests.support.remedy_ways import mirror_job
from tests.support.servers import Database

pytestmark = pytest.mark.integration

CREATED = (
    "CREATE TABLE t (code int NOT NULL CONSTRAINT by_code UNIQUE, other int NOT NULL CONSTRAINT by_other UNIQUE, v text)",
    "ALTER TABLE t ALTER v SET STORAGE EXTERNAL",
    "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code",
    "INSERT INTO t SELECT i, -i, repeat('long', 2000) FROM generate_series(1, 40) AS i",
    "CREATE TABLE beside (id int PRIMARY KEY)",
)
CHANGES = (
    "INSERT INTO t VALUES (100, -100, 'new'), (101, -101, 'new')",
    "UPDATE t SET v = 'short' WHERE code IN (3, 100)",
    "UPDATE t SET code = 200 WHERE code = 4",
    "UPDATE t SET other = -500, v = NULL WHERE code = 5",
    "UPDATE t SET other = -600 WHERE code = 6",
    "UPDATE t SET code = code + 1000, other = other - 1000 WHERE code BETWEEN 10 AND 12",
    "DELETE FROM t WHERE code IN (7, 101)",
    "UPDATE t SET code = code + 3000",
    "UPDATE t SET code = code - 3000",
    "INSERT INTO beside SELECT coalesce(max(id), 0) + 1 FROM beside",
)
LATER_CHANGES = (
    "INSERT INTO t VALUES (300, -300, 'new'), (301, -301, 'new')",
    "UPDATE t SET v = 'short' WHERE code IN (3, 300)",
    "UPDATE t SET code = 210 WHERE code = 14",
    "UPDATE t SET other = -510, v = NULL WHERE code = 5",
    "DELETE FROM t WHERE code IN (8, 301)",
    "UPDATE t SET code = code + 3000",
    "UPDATE t SET code = code - 3000",
    "INSERT INTO beside SELECT coalesce(max(id), 0) + 1 FROM beside",
)
INSERTS = (
    "INSERT INTO t VALUES (102, -102, 'more')",
    "INSERT INTO beside SELECT coalesce(max(id), 0) + 1 FROM beside",
)


def folded(root: Path, table: str, key: Sequence[str]) -> list[tuple[Any, ...]]:
    """The rows that the files of a table tell since all of it was read last. `key` (): a deleted row is any that is equal."""
    changes = read_history(root, "public", table).to_pylist()
    kinds = [change["_change_type"] for change in changes]
    if "truncate" in kinds:
        changes = changes[len(kinds) - kinds[::-1].index("truncate") :]
    rows: list[dict[str, Any]] = []
    moved: dict[str, Any] = {}
    for change in changes:
        new = {name: value for name, value in change.items() if not name.startswith("_")}
        if change["_change_type"] in ("update_preimage", "delete"):
            (moved, *_) = [row for row in rows if all(row[name] == new[name] for name in key or new)]
            rows.remove(moved)
            continue
        before = [row for row in rows if key and all(row[name] == new[name] for name in key)]
        new |= {name: (before or [moved])[0][name] for name in change.get("_unchanged") or ()}
        rows = [row for row in rows if row not in before] + [new]
    return sorted((tuple(row.values()) for row in rows), key=repr)


def rows_of(database: Database, table: str) -> list[tuple[Any, ...]]:
    return sorted(database.query(f"SELECT * FROM {table}"), key=repr)


GIVEN_BACK = "ALTER TABLE t REPLICA IDENTITY USING INDEX by_code"
ALTERED: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "another index": ("ALTER TABLE t REPLICA IDENTITY USING INDEX by_other",),
    "FULL": ("ALTER TABLE t REPLICA IDENTITY FULL",),
    "NOTHING": ("ALTER TABLE t REPLICA IDENTITY NOTHING",),
    "DEFAULT": ("ALTER TABLE t REPLICA IDENTITY DEFAULT",),
    "index dropped": ("ALTER TABLE t DROP CONSTRAINT by_code",),
    "primary key of the same column": ("ALTER TABLE t ADD PRIMARY KEY (code)",),
    "another primary key": ("ALTER TABLE t ADD PRIMARY KEY (other)",),
    "and back": (
        "ALTER TABLE t REPLICA IDENTITY NOTHING",
        "INSERT INTO t VALUES (50, -50, 'x')",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET code = 51 WHERE code = 50",
        GIVEN_BACK,
    ),
}
NO_IDENTITY = {"NOTHING", "DEFAULT", "index dropped"}
"""The server refuses every UPDATE and DELETE then."""
REMEDIES = {
    "NOTHING": (GIVEN_BACK,),
    "DEFAULT": (GIVEN_BACK,),
    "index dropped": ("ALTER TABLE t ADD CONSTRAINT by_code UNIQUE (code)", GIVEN_BACK),
    "another primary key": ('ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT',),
}
"""Statements that give a parked table a key again."""


@pytest.mark.parametrize(
    ("sink", "is_running"),
    [
        ("files", True),
        ("mirror", False),
        pytest.param("files", False, marks=pytest.mark.every_server),
        pytest.param("mirror", True, marks=pytest.mark.every_server),
    ],
)
@pytest.mark.parametrize("altered", list(ALTERED))
def test_the_columns_of_the_index_are_the_key_and_the_identity_may_change(
    postgres_database: Database,
    mysql_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    altered: str,
    sink: str,
    *,
    is_running: bool,
) -> None:
    """A copy is equal, or its table alone is parked. Files take one without an identity as one only inserted into."""
    source, evolves = postgres_database, {"on_schema_change": "evolve"}
    source.execute(*CREATED)
    if sink == "files":
        section = source_of(source, on_table_error="park")
        job = write_job(tmp_path, source=section, sink={"type": "files", "path": "./out"} | evolves)
    else:
        job = mirror_job(tmp_path, source, mysql_database, sink=evolves, on_table_error="park")

    def assert_equal(key: Sequence[str]) -> None:
        rows = rows_of(source, "t")
        assert rows == (rows_of(mysql_database, "copy_t") if sink == "mirror" else folded(tmp_path / "out", "t", key))

    run_through(job)
    source.execute(*CHANGES)
    run_through(job)
    assert_equal(["code"])
    changes = INSERTS if altered in NO_IDENTITY else LATER_CHANGES
    if is_running:
        source.execute("INSERT INTO beside VALUES (999)", "UPDATE t SET v = 'before' WHERE code = 9")
        before_the_next_epoch(monkeypatch, lambda: source.execute(*ALTERED[altered], *changes))
        what_is_told(job)
    else:
        source.execute(*ALTERED[altered], *changes)
    told = what_is_told(job)
    remedies = REMEDIES.get(altered, ())
    if altered == "another primary key" or (remedies and sink == "mirror"):
        assert told is not None
        assert "1 table is parked" in told
        assert altered in NO_IDENTITY or remedies[0] in told
        source.execute(*remedies, *(LATER_CHANGES if altered in NO_IDENTITY else ()))
        run_through(job)
    elif altered in NO_IDENTITY:
        assert told is None
        assert_equal([])
        source.execute(*remedies, *LATER_CHANGES)
        run_through(job)
    else:
        assert told is None
    key = {"another index": "other", "another primary key": "other"}.get(altered, "code")
    assert_equal([key])
    source.execute("UPDATE t SET v = 'last'", "DELETE FROM t WHERE code % 2 = 0")
    assert run_epochs(job) == ["stream"]
    assert_equal([key])


@pytest.mark.parametrize("was", ["FULL", "only inserted into"])
@pytest.mark.parametrize("is_running", [False, True])
def test_a_table_that_a_job_has_copied_without_a_key(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, *, is_running: bool
) -> None:
    """It goes on without one while its rows are only inserted. The first other change has it read again, with the key."""
    source = postgres_database
    identity = "FULL" if was == "FULL" else "DEFAULT"
    source.execute(*CREATED, f"ALTER TABLE t REPLICA IDENTITY {identity}", "CREATE TABLE other (id int PRIMARY KEY)")
    source.execute(f'CREATE PUBLICATION "{source.name}" FOR TABLE t, beside WITH (publish_via_partition_root = true)')
    section = source_of(source, on_table_error="park")
    job = write_job(tmp_path, source=section, sink={"type": "files", "path": "./out", "on_schema_change": "evolve"})
    run_through(job)
    source.execute(*INSERTS, GIVEN_BACK)
    run_through(job)
    assert folded(tmp_path / "out", "t", []) == rows_of(source, "t")
    changes = ("DELETE FROM t WHERE code = 102", *CHANGES)
    if is_running:
        source.execute("INSERT INTO t VALUES (103, -103, 'more')")
        before_the_next_epoch(monkeypatch, lambda: source.execute(*changes))
    else:
        source.execute(*changes)
    for _ in range(2):
        run_through(job)
    assert folded(tmp_path / "out", "t", ["code"]) == rows_of(source, "t")
    source.execute(*LATER_CHANGES)
    assert run_epochs(job) == ["stream"]
    assert folded(tmp_path / "out", "t", ["code"]) == rows_of(source, "t")
    history = read_history(tmp_path / "out", "public", "t").to_pylist()
    assert [change["_change_type"] for change in history].count("truncate") == 1
