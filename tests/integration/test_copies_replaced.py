"""The copy of a table whose rows are read again stays readable: each split replaces what the copy has in its range
(docs/adr/0052)."""

import contextlib
import datetime
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devtools.server import Server
from tests.support.cli import CommandLine
from tests.support.epochs import before_the_next_epoch, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import advice_of, run_command, run_through
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.epoch import write_parts
from tidemark.sinks.mirror import filling
from tidemark.sinks.mirror import sink as mirror_sink
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError
from tidemark.state.failpoints import failpoint

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]

Rows = dict[tuple[Any, ...], tuple[Any, ...]]
Keys = dict[str, set[tuple[Any, ...]]]

COLLATIONS = {"mysql": "utf8mb4_0900_ai_ci", "mariadb": "utf8mb4_unicode_ci", "postgres": '"C"'}
"""MariaDB's ignores trailing spaces."""
BINARY = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_bin"}
"""Those that pad texts as these do."""
STARTS = ("", "a", "A", "ä", "a\u0308", "Z", "ß", "ss", " ", "'\\", "日", "\uffee", "😀", "\t")
TEXTS = [f"{start}{n:02}{' ' * (n % 3)}" for n, start in enumerate(STARTS * 2)]
"""In which collations differ: case, accents, combining characters, spaces, and what UTF-16 orders differently from UTF-8."""
KEYS = {"one": "id", "two": "x, y", "three": "k, at"}

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


DAY = "'2024-02-29 12:00:00'"


def literal(database: Database, text: str) -> str:
    escaped = text if database.kind == "postgres" else text.replace("\\", "\\\\")
    return "'" + escaped.replace("'", "''") + "'"


def job_of(source: Database | dict[str, Any], folder: Path, target: Database, **sink: Any) -> Path:
    return write_job(
        folder,
        source=source_of(source) if isinstance(source, Database) else source,
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
    quoted = functools.partial(literal, source)
    at = "TIMESTAMP" if source.kind == "postgres" else "DATETIME"
    source.execute(
        "CREATE TABLE one (id BIGINT PRIMARY KEY, v INT)",
        "CREATE TABLE two (x INT, y SMALLINT, v INT, PRIMARY KEY (x, y))",
        f"CREATE TABLE three (k VARCHAR(20) COLLATE {COLLATIONS[source.kind]}, at {at}, n INT, v INT, PRIMARY KEY (k, at))",
        *(f"INSERT INTO one VALUES ({n}, 1)" for n in range(-30, 30)),
        *(f"INSERT INTO two VALUES ({n // 7}, {n % 7}, 1)" for n in range(-21, 21)),
        f"INSERT INTO three VALUES {', '.join(f'({quoted(k)}, {DAY}, {n}, 1)' for n, k in enumerate(TEXTS))}",
    )
    if source.kind == "postgres":  # else its texts would have the order of the target's database
        target.execute(f'CREATE TABLE copy_three (k text COLLATE "C", at {at}, n INT, v INT, PRIMARY KEY (k, at))')
    keeps_deleted = source.kind == "mariadb"  # tests/contract has both kinds of copies on every server
    audit = {"audit_columns": {"deleted": "gone", "synced_at": "seen"}} if keeps_deleted else {}
    job = job_of(source, tmp_path, target, **audit)
    run_epochs(job)
    is_there = "gone IS NOT TRUE" if keeps_deleted else "TRUE"

    def copy_of(table: str, condition: str = is_there) -> Rows:
        rows = target.query(f"SELECT {KEYS[table]}, v FROM copy_{table} WHERE {condition}")
        return {row[:-1]: row[-1:] for row in rows}

    day = datetime.datetime.fromisoformat(DAY.strip("'"))
    calm: Keys = {
        "one": {(n,) for n in range(-30, 30) if n % 5 == 0},
        "two": {(x, 3) for x in range(-3, 3)},
        "three": {(k, day) for n, k in enumerate(TEXTS) if n % 5 == 0},
    }
    surplus: Keys = {
        "one": {(-(10**15),), (10**15,)},
        "two": {(-1000, 0), (0, 100), (0, -100), (1000, 0)},
        "three": {(k, day) for k in ("!", "zz", "é1", "\U0010ffff")},
    }
    target.execute(
        "UPDATE copy_one SET v = -1",
        "UPDATE copy_two SET v = -1",
        "UPDATE copy_three SET v = -1",
        "DELETE FROM copy_one WHERE id % 5 = 2",
        *(f"INSERT INTO copy_one (id, v) VALUES ({id_}, -1)" for (id_,) in surplus["one"]),
        *(f"INSERT INTO copy_two (x, y, v) VALUES ({x}, {y}, -1)" for x, y in surplus["two"]),
        *(f"INSERT INTO copy_three (k, at, v) VALUES ({quoted(k)}, {DAY}, -1)" for k, _ in surplus["three"]),
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
                f"INSERT INTO three VALUES ({quoted(STARTS[looks % len(STARTS)] + f'+{looks}')}, {DAY}, 1, 1)",
                f"UPDATE three SET v = {looks} WHERE n % 5 = 1",
                f"UPDATE three SET k = concat({quoted(STARTS[(looks + 5) % len(STARTS)])}, n) WHERE n = {looks} AND n % 5 = 2",
                f"DELETE FROM three WHERE n = {looks} AND n % 5 = 3",
            )

    at_each_commit(monkeypatch, look)
    read_again(job, source, *calm)
    for point in DEATHS:
        die_at(job, point)
        look()
        if point == "tables.after_joined":
            assert replaced(tmp_path) == set(calm)
    assert stale["three"], "each death was before all ranges were replaced"
    run_epochs(job)
    assert mixed == set(calm)
    looks = 30  # nobody writes any more
    for _ in range(2):
        run_epochs(job)
        for table in calm:
            rows = source.query(f"SELECT {KEYS[table]}, v FROM {table}")
            assert copy_of(table) == {row[:-1]: row[-1:] for row in rows}
        source.execute(*(f"UPDATE {table} SET v = v + 1" for table in calm), "DELETE FROM one WHERE id % 5 = 1")
    if keeps_deleted:
        for table, keys in surplus.items():
            marked = copy_of(table, "gone IS TRUE")
            assert {key: marked[key] for key in keys} == dict.fromkeys(keys, (-1,)), "with their last values"


def test_a_copy_that_can_t_be_replaced_is_emptied(
    any_source_database: Database,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second unique index: a row that is still there could have the value of a new one. Keys in another order of columns, or
    with another collation: the copy may have other ranges. A year: MySQL reads small numbers as others. A column of
    another type: rows that are still there would lose its values. If it were replaced in spite of its collation, a split would
    find that its rows are not in its range."""
    source = any_source_database
    target: Database = request.getfixturevalue(f"{source.kind}_database")
    source.execute(
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v INT)" for t in ("plain", "uniq", "retyped", "created", "extended")),
        f"CREATE TABLE collated (id VARCHAR(9) COLLATE {COLLATIONS[source.kind]} PRIMARY KEY, v INT)",
        "CREATE TABLE turned (id INT, b INT, v INT, PRIMARY KEY (id, b))",
        "CREATE TABLE decimals (id DECIMAL(9, 2) PRIMARY KEY, v INT)",
    )
    tables = {"plain", "uniq", "retyped", "created", "extended", "collated", "turned", "decimals"}
    source.execute(
        *(
            f"INSERT INTO {t} ({'id, b' if t == 'turned' else 'id'}, v) VALUES ({'1, 1' if t == 'turned' else '1'}, 1)"
            for t in tables
        )
    )
    is_postgres = source.kind == "postgres"
    other = {"mysql": "utf8mb4_0900_bin", "mariadb": "utf8mb4_nopad_bin"}.get(source.kind)
    target.execute(
        "CREATE TABLE copy_turned (id INT, b INT, v INT, PRIMARY KEY (b, id))",
        f"CREATE TABLE copy_collated (id VARCHAR(9){f' COLLATE {other}' if other else ''} PRIMARY KEY, v INT)",
    )
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
    assert replaced(tmp_path) == {"plain", "extended", "decimals"}
    for table in tables:
        rows = f"SELECT id, v FROM %s{table} ORDER BY {'id, b' if table == 'years' else 'id'}"
        assert target.query(rows % "copy_") == source.query(rows % ""), table
    if not is_postgres:
        source.execute(*(f"INSERT INTO collated VALUES ('{'aB'[n % 2]}{n}', 1)" for n in range(30)))
        for module in (mirror_sink, filling):
            monkeypatch.setattr(module, "orders_alike", lambda *_: True)
        read_again(job, source, "collated")
        with pytest.raises(SinkError, match="rows were written: the target orders id differently from the source"):
            run_epochs(job)
        target.execute("DROP TABLE copy_collated")  # as the remedy says
        read_again(job, source, "collated")
        run_epochs(job)
        rows = "SELECT id, v FROM %scollated ORDER BY BINARY id"
        assert target.query(rows % "copy_") == source.query(rows % "")


@contextlib.contextmanager
def database_of_icu(server: Server, locale: str) -> Iterator[Database]:
    """A database whose default collation has a version, unlike that of the server's."""
    settings = f"TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE '{locale}' LOCALE 'C.UTF-8'"
    with fresh_database(server, settings) as database:
        yield database


@pytest.mark.every_server
def test_a_text_of_postgres_needs_the_same_library_locale_and_version(
    postgres18_server: Server, mysql_database: Database, tmp_path: Path
) -> None:
    """UUIDs are ordered alike anywhere, and texts by code points where the copy's are, too."""
    with (
        database_of_icu(postgres18_server, "und") as source,
        database_of_icu(postgres18_server, "und") as same,
        database_of_icu(postgres18_server, "sv") as other,
    ):
        of_codes = 'varchar(9) COLLATE "C"'
        types = {
            "named": "text",
            "coded": of_codes,
            "ids": "uuid",
            "days": "date",
            "numbers": "numeric",
            "wide": "char(9)",
        }
        source.execute(
            *(f"CREATE TABLE {name} (k {kind} PRIMARY KEY, v INT)" for name, kind in types.items()),
            "INSERT INTO named SELECT chr(n) || n, 1 FROM generate_series(32, 126) n",
            "INSERT INTO coded SELECT chr(n + 1000) || n, 1 FROM generate_series(32, 126) n",
            "INSERT INTO ids SELECT gen_random_uuid(), 1 FROM generate_series(1, 40)",
            "INSERT INTO days SELECT date '1999-12-31' + 99 * n, 1 FROM generate_series(1, 40) n",
            "INSERT INTO days VALUES ('-infinity', 1), ('infinity', 1), ('0044-03-15 BC', 1)",
            "INSERT INTO numbers SELECT 3.5 * n, 1 FROM generate_series(-20, 20) n",
            "INSERT INTO numbers VALUES ('NaN', 1), ('-Infinity', 1), ('Infinity', 1)",
            "INSERT INTO wide VALUES ('a', 1)",
        )
        other.execute(f"CREATE TABLE copy_coded (k {of_codes} PRIMARY KEY, v INT)")
        alike = {"ids", "days", "numbers"}
        expected = {same: alike | {"named"}, other: alike | {"coded"}, mysql_database: {"coded", "ids"}}
        for number, (target, tables) in enumerate(expected.items()):
            folder = tmp_path / str(number)
            folder.mkdir()
            copied = {"coded", "ids", *([] if target is mysql_database else types)}
            slot = f"{source.name}_{number}"
            of_job = {"tables": [f"public.{table}" for table in sorted(copied)], "slot": slot, "publication": slot}
            job = job_of(source_of(source, **of_job), folder, target)
            run_epochs(job)
            target.execute(*(f"UPDATE copy_{table} SET v = 2" for table in copied))
            read_again(job, source, *copied)
            run_epochs(job)
            assert replaced(folder) == tables
            for table in copied:
                key = "k" if target is mysql_database else "rtrim(k::text)"
                rows = target.query(f"SELECT {key}, v FROM copy_{table}")
                assert sorted(rows) == sorted(source.query(f"SELECT rtrim(k::text), v FROM {table}")), table


def test_rows_with_a_zero_date_in_their_key_stay_rejected(
    mysql_server: Server, mysql_database: Database, tmp_path: Path
) -> None:
    """Their keys are in no range that is known. Those of before go, and no split forgets those of another one."""
    with fresh_database(mysql_server) as source:
        source.execute(
            "SET sql_mode = ''",
            "CREATE TABLE dated (at DATETIME(3), id INT, v INT, PRIMARY KEY (at, id))",
            *(f"INSERT INTO dated VALUES ('2024-03-{n % 28 + 1:02} 00:00:00.{n:03}', {n}, 1)" for n in range(60)),
            "INSERT INTO dated VALUES ('0000-00-00', -1, 1), ('2024-03-00', -2, 1), ('2024-04-00', -3, 1)",
        )
        job = job_of(source, tmp_path, mysql_database, on_bad_value="reject")
        run_epochs(job)
        for number in range(2):
            source.execute(f"DELETE FROM dated WHERE id = -{number + 1}", "UPDATE dated SET v = v + 1 WHERE id > 40")
            read_again(job, source, "dated")
            run_epochs(job)
            assert replaced(tmp_path) == {"dated"}
            rejected = mysql_database.query("SELECT row_data FROM tidemark_rejects")
            ids = {json.loads(data)["id"] for (data,) in rejected}
            assert (len(rejected), ids) == (2 - number, {-3, -2} if number == 0 else {-3})
            rows = "SELECT at, id, v FROM %sdated WHERE id >= 0 ORDER BY id"
            assert mysql_database.query(rows % "copy_") == source.query(rows % "")
        assert mysql_database.query("SELECT count(*) FROM copy_dated") == [(60,)]


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


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
def test_a_key_that_is_ordered_otherwise_meanwhile_gets_its_collation_back(
    kind: str, request: pytest.FixtureRequest, tidemark: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = source
    source.execute(f"CREATE TABLE t (id VARCHAR(9) COLLATE {COLLATIONS[kind]} PRIMARY KEY, v INT)")
    source.execute(*(f"INSERT INTO t VALUES ('{'aB'[n % 2]}{n}', 1)" for n in range(30)))
    job = job_of(source_of(source, tables=[f"{source.name}.t"]), tmp_path, target)
    run_epochs(job)
    key = "ALTER TABLE copy_t MODIFY id VARCHAR(9) COLLATE {} NOT NULL"
    source.execute("UPDATE t SET v = 2")
    read_again(job, source, "t")
    with monkeypatch.context() as patch:
        before_the_next_epoch(patch, lambda: target.execute(key.format(BINARY[kind])))
        told = advice_of(job)
    assert "it is no longer certain that the key's columns (id) are ordered as in the source." in told
    assert "Give them their types and collations again. To read the table again: tidemark signal" in told
    target.execute(key.format(COLLATIONS[kind]))
    run_command(told, job, tidemark)
    run_through(job)
    assert replaced(tmp_path) == {"t"}
    rows = "SELECT id, v FROM %st ORDER BY BINARY id"
    assert target.query(rows % "copy_") == source.query(rows % "")
