"""The copy of a table whose rows are read again stays readable: each split replaces what the copy has in its range
(docs/adr/0052)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.epoch import write_parts
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.failpoints import failpoint

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]

Rows = dict[tuple[int, ...], tuple[Any, ...]]
Keys = dict[str, set[tuple[int, ...]]]

DEATHS = (
    "tables.before_joined",
    "tables.after_joined",
    "sink.before_commit",
    "sink.after_commit",
    "driver.epoch_written",
    "driver.epoch_committed",
    "sink.before_commit",
    "sink.after_commit",
)


def job_of(database: Database, folder: Path, target: Database, **sink: Any) -> Path:
    return write_job(
        folder,
        source=source_of(database),
        checkpoint=str(folder / "checkpoint"),
        snapshot={"split_rows": 10, "parallelism": 1},
        sink={"type": "mirror", "url": target.url, "table": "copy_{table}", **sink},
    )


def read_again(job: Path, database: Database, *tables: str) -> None:
    resnapshot(load_job_file(job), [TableName(database.schema, table) for table in tables])


def replaced(folder: Path) -> set[str]:
    """The tables whose copies were not emptied when they came back last."""
    state = Checkpoint.at(str(folder / "checkpoint")).job_state()
    assert state is not None
    return {table.name for table in state.joined[-1].replaced}


def at_each_commit(monkeypatch: pytest.MonkeyPatch, look: Callable[[], None]) -> None:
    """Calls `look` after each transaction that a run commits in the target: between two of them readers see nothing new."""

    def reached(name: str) -> None:
        if name == "sink.after_commit":
            look()
        failpoint(name)

    monkeypatch.setattr(write_parts, "failpoint", reached)


def test_no_reader_of_a_copy_misses_a_row_while_its_table_is_read_again(
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that nobody changes in the source are in the copy at each moment: as before, then as they are, never as before
    again. Writers change the others after each transaction, and the run dies between them."""
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 2)  # so the deaths are before the last of some 12 splits
    source.execute(
        "CREATE TABLE one (id BIGINT PRIMARY KEY, v INT)",
        "CREATE TABLE two (x INT, y SMALLINT, v INT, PRIMARY KEY (x, y))",
        *(f"INSERT INTO one VALUES ({n}, 1)" for n in range(-30, 30)),
        *(f"INSERT INTO two VALUES ({n // 7}, {n % 7}, 1)" for n in range(-21, 21)),
    )
    keeps_deleted = source.kind == "mariadb"  # tests/contract has both kinds of copies on every server
    audit = {"audit_columns": {"deleted": "gone", "synced_at": "seen"}} if keeps_deleted else {}
    job = job_of(source, tmp_path, target, **audit)
    run_epochs(job)
    is_there = "gone IS NOT TRUE" if keeps_deleted else "TRUE"

    def copy_of(table: str, condition: str = is_there) -> Rows:
        key = "id" if table == "one" else "x, y"
        return {row[:-1]: row[-1:] for row in target.query(f"SELECT {key}, v FROM copy_{table} WHERE {condition}")}

    calm: Keys = {"one": {(n,) for n in range(-30, 30) if n % 5 == 0}, "two": {(x, 3) for x in range(-3, 3)}}
    surplus: Keys = {"one": {(-(10**15),), (10**15,)}, "two": {(-1000, 0), (0, 100), (0, -100), (1000, 0)}}
    target.execute(
        "UPDATE copy_one SET v = -1",
        "UPDATE copy_two SET v = -1",
        "DELETE FROM copy_one WHERE id % 5 = 2",
        *(f"INSERT INTO copy_one (id, v) VALUES ({id_}, -1)" for (id_,) in surplus["one"]),
        *(f"INSERT INTO copy_two (x, y, v) VALUES ({x}, {y}, -1)" for x, y in surplus["two"]),
    )
    before = {table: copy_of(table) for table in calm}
    stale = {table: set(rows) for table, rows in before.items()}
    looks, mixed = 0, set[str]()

    def look() -> None:
        nonlocal looks
        for table, keys in calm.items():
            rows = copy_of(table)
            assert keys <= set(rows), f"{table} lacks rows after {looks} transactions"
            still = {key for key, row in rows.items() if row == (-1,)}
            assert still <= stale[table], f"rows of {table} are stale again after {looks} transactions"
            stale[table] = still
            if still and still != set(before[table]):
                mixed.add(table)
        looks += 1
        if looks < 30:
            source.execute(
                f"INSERT INTO one VALUES ({100 + looks}, 1)",
                f"UPDATE one SET v = {looks} WHERE id % 5 = 1",
                f"UPDATE one SET id = id + 1000 * {looks} WHERE id = {looks - 29} AND id % 5 = 3",
                f"UPDATE one SET id = id - 1000 * {looks} WHERE id = {29 - looks} AND id % 5 = 4",
                f"UPDATE two SET v = v + 1 WHERE y = {looks % 3}",
                f"DELETE FROM two WHERE y > 3 AND x = {looks % 6 - 3}",
                f"UPDATE two SET x = -x - 100 WHERE y = 0 AND x = {looks % 6 - 3}",
            )

    at_each_commit(monkeypatch, look)
    read_again(job, source, "one", "two")
    for point in DEATHS:
        die_at(job, point)
        look()
        if point == "tables.after_joined":
            assert replaced(tmp_path) == {"one", "two"}
    assert stale["two"], "each death was before all ranges were replaced"
    run_epochs(job)
    assert mixed == {"one", "two"}
    looks = 30  # nobody writes any more
    for _ in range(2):
        run_epochs(job)
        for table in calm:
            key = "id" if table == "one" else "x, y"
            assert copy_of(table) == {row[:-1]: row[-1:] for row in source.query(f"SELECT {key}, v FROM {table}")}
        source.execute("UPDATE one SET v = v + 1", "UPDATE two SET v = v + 1", "DELETE FROM one WHERE id % 5 = 1")
    if keeps_deleted:
        for table, keys in surplus.items():
            marked = copy_of(table, "gone IS TRUE")
            assert {key: marked[key] for key in keys} == dict.fromkeys(keys, (-1,)), "with their last values"


def test_a_copy_that_can_t_be_replaced_is_emptied(
    any_source_database: Database, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A second unique index: a row that is still there could have the value of a new one. Keys that are no integers, or not in
    this order: the copy may have other ranges. A year: MySQL reads small numbers as others. A column of another type: rows that
    are still there would lose its values."""
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    source.execute(
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v INT)" for t in ("plain", "uniq", "retyped", "created", "extended")),
        "CREATE TABLE texts (id VARCHAR(9) PRIMARY KEY, v INT)",
        "CREATE TABLE turned (id INT, b INT, v INT, PRIMARY KEY (id, b))",
        "CREATE TABLE decimals (id DECIMAL(9, 2) PRIMARY KEY, v INT)",
    )
    tables = {"plain", "uniq", "retyped", "created", "extended", "texts", "turned", "decimals"}
    source.execute(
        *(
            f"INSERT INTO {t} ({'id, b' if t == 'turned' else 'id'}, v) VALUES ({'1, 1' if t == 'turned' else '1'}, 1)"
            for t in tables
        )
    )
    target.execute("CREATE TABLE copy_turned (id INT, b INT, v INT, PRIMARY KEY (b, id))")
    is_postgres = source.kind == "postgres"
    if not is_postgres:
        tables |= {"years"}
        source.execute(
            "CREATE TABLE years (id YEAR, b INT, v INT, PRIMARY KEY (id, b))",
            *(f"INSERT INTO years VALUES ({2000 + n % 3}, {n}, 1)" for n in range(25)),
        )
        target.execute("CREATE TABLE copy_years (id SMALLINT, b INT, v INT, PRIMARY KEY (id, b))")
    job = job_of(source, tmp_path, target)
    run_epochs(job)
    target.execute(
        "CREATE UNIQUE INDEX other ON copy_uniq (v)",
        "ALTER TABLE copy_retyped " + ("ALTER v TYPE SMALLINT" if is_postgres else "MODIFY v SMALLINT"),
        "DROP TABLE copy_created",
        "ALTER TABLE copy_extended DROP COLUMN v",
    )
    source.execute("UPDATE uniq SET v = 2", "UPDATE plain SET v = 2")
    read_again(job, source, *tables)
    run_epochs(job)
    assert replaced(tmp_path) == {"plain", "extended"}
    for table in tables:
        rows = f"SELECT id, v FROM %s{table} ORDER BY {'id, b' if table == 'years' else 'id'}"
        assert target.query(rows % "copy_") == source.query(rows % ""), table


def test_a_row_that_moves_between_ranges_takes_no_value_of_an_old_row(
    postgres18_database: Database, postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of PostgreSQL leaves a long value out of an update of the key. It is not taken from the copy's row under the key
    before, whose range was not replaced yet. The first split has the greatest key, so it is known what has been read."""
    source, target = postgres18_database, postgres_database
    source.execute(
        "CREATE TABLE long (id BIGINT PRIMARY KEY, v INT, body TEXT)",
        "ALTER TABLE long ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO long SELECT 2 * n, 1, repeat(n::text || ' ', 3000) FROM generate_series(1, 40) n",
    )
    job = job_of(source, tmp_path, target)
    monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)
    run_epochs(job)
    target.execute("UPDATE copy_long SET body = 'old'")
    moved = False

    def look() -> None:
        nonlocal moved
        old = {row[0] for row in target.query("SELECT id FROM copy_long WHERE body = 'old'")}
        if not moved and 80 not in old:
            assert {30, 32, 34} <= old, "their range is not replaced yet"
            source.execute(
                "UPDATE long SET id = id + 1000 WHERE id IN (30, 32)",
                "UPDATE long SET v = 2 WHERE id = 1032",
                "UPDATE long SET id = 33 WHERE id = 80",
            )
            moved = True

    at_each_commit(monkeypatch, look)
    read_again(job, source, "long")
    run_epochs(job)
    run_epochs(job)
    assert moved
    rows = "SELECT id, v, body FROM %slong ORDER BY id"
    assert target.query(rows % "copy_") == source.query(rows % "")
