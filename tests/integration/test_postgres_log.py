"""The log reader on real servers: every operation and identity, what is refused, and how ranges end."""

import contextlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.support.postgres_log import Change, LoggedDatabase, changes_of, logged_postgres
from tests.support.servers import fresh_database
from tidemark.readers.postgres.pgoutput.reading import ReadOptions
from tidemark.state.errors import LogPositionLostError, SchemaChangedError, SourceNotUsableError
from tidemark.state.log_range import LogRange
from tidemark.state.position import WalPosition
from tidemark.state.table import TableId

__all__ = ["logged_postgres"]

pytestmark = pytest.mark.servers_in_turn("logged_postgres")

INSERT, UPDATE, DELETE, TRUNCATE = 0, 2, 3, 4
BIG = "string_agg(md5(i::text), '') FROM generate_series(1, 400) AS i"
"""Long enough to be stored out of line where compression does not help."""


def rows(changes: list[Change], *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(change[name] for name in ("_change_type", *columns)) for change in changes]


@pytest.mark.pitfall(58)
def test_every_operation_in_the_order_of_commits(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE uncaptured (id int PRIMARY KEY)")
    log.publish("t", "uncaptured")
    with contextlib.closing(log.database.connect()) as first, first.cursor() as cursor:
        first.autocommit = False
        cursor.execute("INSERT INTO t VALUES (1, 'first'), (2, NULL)")
        log.execute("INSERT INTO t VALUES (3, 'second')", "INSERT INTO uncaptured VALUES (1)")
        cursor.execute("UPDATE t SET v = 'changed' WHERE id = 1; DELETE FROM t WHERE id = 2")
        first.commit()
    log.execute("UPDATE t SET id = 30 WHERE id = 3")
    changes = log.read("t")
    assert rows(changes, "id", "v", "_seq") == [
        (INSERT, 3, "second", 0),
        (INSERT, 1, "first", 0),
        (INSERT, 2, None, 1),
        (UPDATE, 1, "changed", 2),
        (DELETE, 2, None, 3),
        (DELETE, 3, None, 0),
        (INSERT, 30, "second", 1),
    ]
    versions = [change["_commit_version"] for change in changes]
    assert versions == sorted(versions)
    assert len(set(versions)) == 3
    assert log.read("t") == []


@pytest.mark.pitfall(62)
def test_identities(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute(
        "CREATE TABLE whole (id int PRIMARY KEY, v int)",
        "ALTER TABLE whole REPLICA IDENTITY FULL",
        "CREATE TABLE heap (a int, b int)",
        "ALTER TABLE heap REPLICA IDENTITY FULL",
        "CREATE TABLE named (id int PRIMARY KEY, code text NOT NULL UNIQUE)",
        "ALTER TABLE named REPLICA IDENTITY USING INDEX named_code_key",
        "CREATE TABLE logbook (at int)",
    )
    log.publish("whole", "heap", "named")
    log.execute(
        f"ALTER PUBLICATION {log.name} ADD TABLE logbook",
        "INSERT INTO whole VALUES (1, 1); UPDATE whole SET v = 2; UPDATE whole SET id = 9; DELETE FROM whole",
        "INSERT INTO heap VALUES (1, 1), (1, 1); UPDATE heap SET b = 2; DELETE FROM heap WHERE a = 1",
        "INSERT INTO logbook VALUES (5)",
    )
    assert rows(log.read("whole"), "id", "v") == [
        (INSERT, 1, 1),
        (UPDATE, 1, 2),
        (DELETE, 1, 2),
        (INSERT, 9, 2),
        (DELETE, 9, 2),
    ]
    log.execute("INSERT INTO heap VALUES (1, 1); UPDATE heap SET b = 2; INSERT INTO logbook VALUES (5)")
    assert rows(log.read("heap"), "a", "b") == [(INSERT, 1, 1), (DELETE, 1, 1), (INSERT, 1, 2)]
    log.execute("INSERT INTO named VALUES (1, 'a'); UPDATE named SET id = 2")
    with pytest.raises(SchemaChangedError, match="REPLICA IDENTITY"):
        log.read("named")
    by_code = replace(log.schema("named"), key=("code",))
    log.execute("UPDATE named SET code = 'b'; DELETE FROM named")
    assert rows(log.read(by_code), "id", "code") == [
        (INSERT, 1, "a"),
        (UPDATE, 2, "a"),
        (DELETE, None, "a"),
        (INSERT, 2, "b"),
        (DELETE, None, "b"),
    ]


def test_order_stays_where_an_identity_changes_to_and_fro(logged_postgres: LoggedDatabase) -> None:
    """One buffer holds two forms of one table."""
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY, version int)")
    log.publish("t")
    log.execute("INSERT INTO t VALUES (1, 0)")
    for version, identity in enumerate(("FULL", "DEFAULT", "FULL", "DEFAULT"), 1):
        log.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}", f"UPDATE t SET version = {version} WHERE id = 1")
    assert [change["version"] for change in log.read("t")] == [0, 1, 2, 3, 4]


@pytest.mark.pitfall(61)
def test_unchanged_toast_is_marked_or_filled_from_the_old_row(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    for name, identity in (("t", "DEFAULT"), ("whole", "FULL")):
        log.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int, big text, also text)",
            f"ALTER TABLE {name} ALTER big SET STORAGE EXTERNAL, REPLICA IDENTITY {identity}",
            f"INSERT INTO {name} SELECT 1, 0, {BIG}",
        )
    log.publish("t", "whole")
    ((big,),) = log.query("SELECT big FROM t")
    log.execute(
        "UPDATE t SET n = 1", "UPDATE t SET id = 2, n = 2", "UPDATE whole SET n = 1", "UPDATE t SET big = 'new'"
    )
    changes = log.read("t", "whole")
    assert [(c["table"], c["_change_type"], c["big"], c["_unchanged"]) for c in changes] == [
        ("t", UPDATE, None, ["big"]),
        ("t", DELETE, None, None),
        ("t", INSERT, None, ["big"]),
        ("whole", UPDATE, big, None),
        ("t", UPDATE, "new", None),
    ]


def test_a_toasted_key_that_did_not_change_is_known(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute(
        "CREATE TABLE t (k text PRIMARY KEY, n int)",
        "ALTER TABLE t ALTER k SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT string_agg(md5(i::text), ''), 0 FROM generate_series(1, 70) AS i",
    )
    log.publish("t")
    ((key,),) = log.query("SELECT k FROM t")
    log.execute("UPDATE t SET n = 1")
    assert rows(log.read("t"), "k", "n") == [(UPDATE, key, 1)]


@pytest.mark.pitfall(63)
def test_subtransactions_and_rollbacks(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    log.execute(
        "BEGIN; INSERT INTO t VALUES (1); SAVEPOINT a; INSERT INTO t VALUES (2); ROLLBACK TO a; SAVEPOINT b;"
        "INSERT INTO t VALUES (3); RELEASE b; INSERT INTO t VALUES (4); COMMIT",
        "BEGIN; INSERT INTO t VALUES (5); ROLLBACK",
        "SELECT pg_logical_emit_message(true, 'p', 'm')",
    )
    assert rows(log.read("t"), "id", "_seq") == [(INSERT, 1, 0), (INSERT, 3, 1), (INSERT, 4, 2)]


@pytest.mark.pitfall(66)
def test_partitions_are_read_as_their_table(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE high (v text, id int NOT NULL)",
        "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (10) TO (20)",
    )
    log.publish("t")
    log.execute("INSERT INTO t VALUES (1, 'a'), (11, 'b'); UPDATE t SET id = 12 WHERE id = 1; DELETE FROM high")
    assert rows(log.read("t"), "id", "v") == [
        (INSERT, 1, "a"),
        (INSERT, 11, "b"),
        (DELETE, 1, None),
        (INSERT, 12, "a"),
        (DELETE, 11, None),
        (DELETE, 12, None),
    ]


@pytest.mark.pitfall(67)
def test_generated_columns_are_left_out(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)")
    log.publish("t")
    log.execute("INSERT INTO t VALUES (1, DEFAULT, 'a')")
    changes = log.read("t")
    assert rows(changes, "id", "v") == [(INSERT, 1, "a")]
    assert "twice" not in changes[0]


@pytest.mark.pitfall(41)
def test_a_truncate_is_a_change_in_its_order_of_each_table_that_it_empties(logged_postgres: LoggedDatabase) -> None:
    """Includes TRUNCATE … CASCADE. A partitioned table's TRUNCATE is its root's; one of a single partition is not
    seen."""
    log = logged_postgres
    log.execute(
        "CREATE TABLE t (id serial PRIMARY KEY)",
        "CREATE TABLE line (id int PRIMARY KEY, t int REFERENCES t)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p_low PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p_rest PARTITION OF p DEFAULT",
    )
    log.publish("t", "line", "other", "p")
    log.execute("INSERT INTO t VALUES (1)", "TRUNCATE other", "INSERT INTO t VALUES (2)")
    assert rows(log.read("t"), "id") == [(INSERT, 1), (INSERT, 2)]
    log.execute("INSERT INTO t VALUES (3); TRUNCATE t, other RESTART IDENTITY CASCADE; INSERT INTO t VALUES (4)")
    changes = log.read("t", "line")
    assert sorted(rows(changes, "table", "id", "_seq"), key=lambda row: row[-1])[0] == (INSERT, "t", 3, 0)
    assert {row[:3] for row in rows(changes, "table", "id", "_seq")[1:3]} == {
        (TRUNCATE, "t", None),
        (TRUNCATE, "line", None),
    }
    assert rows(changes, "table", "id", "_seq")[3] == (INSERT, "t", 4, 3)
    log.execute("INSERT INTO p VALUES (1), (11)", "TRUNCATE p_low", "TRUNCATE p", "INSERT INTO p VALUES (2)")
    assert rows(log.read("p"), "id") == [(INSERT, 1), (INSERT, 11), (TRUNCATE, None), (INSERT, 2)]


@pytest.mark.pitfall(69)
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ALTER TABLE t ADD COLUMN w int", "has a new column .w."),
        ("ALTER TABLE t RENAME COLUMN v TO w", "has a new column .w."),
        ("ALTER TABLE t DROP COLUMN v", "has no column v"),
        ("ALTER TABLE t ALTER v TYPE varchar(20)", r"has v as character varying\(20\), which was .*\(10\)"),
        ("ALTER TABLE t ALTER m TYPE text", "has m as text, which was public.mood"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_another_schema_stops_the_reading(
    logged_postgres: LoggedDatabase, statement: str, message: str, inside: bool
) -> None:
    log = logged_postgres
    log.execute(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(10), m mood, secret int)",
    )
    log.publish("t")
    schema = log.schema("t", exclude_columns=["secret"])
    log.execute(
        "INSERT INTO t VALUES (1, 'a', 'good')",
        "ALTER TABLE t ALTER v SET DEFAULT 'x', ALTER v SET NOT NULL",
        "ALTER TABLE t DROP COLUMN secret",
        "INSERT INTO t VALUES (2, 'b', 'bad')",
    )
    assert rows(log.read(schema), "id", "v", "m") == [(INSERT, 1, "a", "good"), (INSERT, 2, "b", "bad")]
    insert = "INSERT INTO t (id) VALUES (3)" if "DROP" in statement else "INSERT INTO t VALUES (3, 'c')"
    if inside:
        log.execute(f"BEGIN; INSERT INTO t VALUES (9, 'z'); {statement}; {insert}; COMMIT")
    else:
        log.execute(statement, insert)
    with pytest.raises(SchemaChangedError, match=message) as caught:
        log.read(schema)
    assert "Undo" not in caught.value.remedy  # the log keeps what it has


def test_a_type_that_was_renamed_may_get_its_name_back(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TYPE mood AS ENUM ('good', 'bad')", "CREATE TABLE t (id int PRIMARY KEY, m mood)")
    log.publish("t")
    schema = log.schema("t")
    log.execute("ALTER TYPE mood RENAME TO feeling", "INSERT INTO t VALUES (1, 'good')")
    with pytest.raises(SchemaChangedError, match=r"has m as public\.feeling") as caught:
        log.read(schema)
    assert "give it back its name" in caught.value.remedy
    log.execute("ALTER TYPE feeling RENAME TO mood")
    assert rows(log.read(schema), "id", "m") == [(INSERT, 1, "good")]


def test_what_precedes_the_range_need_not_fit(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    log.execute("INSERT INTO t VALUES (1)", "ALTER TABLE t ADD COLUMN v int")
    log.start = log.end()
    log.execute("INSERT INTO t VALUES (2, 3)")
    assert rows(log.read("t"), "id", "v") == [(INSERT, 2, 3)]


@pytest.mark.pitfall(10, 58)
def test_ranges_tile_the_log_whatever_their_places(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    first = log.start
    for i in range(5):
        log.execute(f"INSERT INTO t VALUES ({i}), ({i + 10})")
    end = log.end()
    whole = changes_of(log.reader("t"), LogRange(first, end))
    versions = sorted({change["_commit_version"] for change in whole})
    boundaries = [v + step for v in versions for step in (-1, 0, 1, 40)]
    places = [first, *(WalPosition(lsn) for lsn in boundaries), end]
    parts = [changes_of(log.reader("t"), LogRange(a, b)) for a, b in pairwise(places)]
    assert [change for part in parts for change in part] == whole
    assert len(whole) == 10


@pytest.mark.parametrize("value", ["'infinity'::timestamp", "'-infinity'::timestamptz", "'infinity'::date"])
@pytest.mark.pitfall(68)
def test_infinite_moments_stop_the_reading(logged_postgres: LoggedDatabase, value: str) -> None:
    log = logged_postgres
    kind = value.partition("::")[2]
    log.execute(f"CREATE TABLE t (id int PRIMARY KEY, v {kind})")
    log.publish("t")
    log.execute(f"INSERT INTO t VALUES (1, {value})")
    with pytest.raises(SourceNotUsableError, match=r"public\.t\.v holds -?infinity"):
        log.read("t")


@pytest.mark.pitfall(83)
def test_a_large_transaction_is_handed_out_in_parts(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    log.publish("t")
    log.execute("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) AS i")
    reader = log.reader("t", options=ReadOptions(buffer_bytes=100_000))
    sizes, ids = [], []
    for batch in reader.read(LogRange(log.start, log.end())):
        sizes.append(batch.rows.num_rows)
        ids += batch.rows["id"].to_pylist()
    assert max(sizes) < 1000
    assert ids == list(range(1, 20001))
    assert reader.report.transactions == 1
    assert reader.report.emitted_changes == 20000


def test_a_row_larger_than_the_buffer(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    log.publish("t")
    log.execute("INSERT INTO t VALUES (1, repeat('é', 1000000)), (2, 'small')")
    changes = log.read("t", options=ReadOptions(buffer_bytes=4096))
    assert [(c["id"], c["v"]) for c in changes] == [(1, "é" * 1_000_000), (2, "small")]


def test_a_range_behind_the_end_of_the_log_is_refused(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    log.execute("CREATE TABLE t (id int PRIMARY KEY)")
    log.publish("t")
    with pytest.raises(LogPositionLostError, match="now it ends at"):
        changes_of(log.reader("t"), LogRange(WalPosition(log.start.lsn + 1), log.start))
    with pytest.raises(LogPositionLostError, match="which the job has read"):
        changes_of(log.reader("t"), LogRange(log.start, WalPosition(log.end().lsn + (1 << 30))))


def test_names_that_need_quoting(logged_postgres: LoggedDatabase) -> None:
    log = logged_postgres
    name = 'T "x", é'
    quoted = '"T ""x"", é"'
    log.execute(f'CREATE TABLE {quoted} ("I d" int PRIMARY KEY, "%s" text)')
    log.publish(name)
    log.execute(f"INSERT INTO {quoted} VALUES (1, 'a')")
    changes = log.read(name)
    assert log.reader(name).schemas.keys() == {TableId("public", name)}
    assert rows(changes, "I d", "%s") == [(INSERT, 1, "a")]


@pytest.mark.pitfall(38)
@pytest.mark.parametrize("encoding", ["LATIN1", "WIN1251", "EUC_JP"])
def test_a_database_in_another_encoding(logged_postgres: LoggedDatabase, encoding: str) -> None:
    word = {"LATIN1": "é", "WIN1251": "ж", "EUC_JP": "漢"}[encoding]
    settings = f"TEMPLATE template0 ENCODING {encoding} LC_COLLATE 'C' LC_CTYPE 'C'"
    with fresh_database(logged_postgres.database.server, settings) as database:
        log = LoggedDatabase(database)
        log.execute(f'CREATE TABLE "{word}" ("{word}_id" int PRIMARY KEY, v text)')
        log.publish(word)
        log.execute(f"INSERT INTO \"{word}\" VALUES (1, 'x{word}y')")
        assert rows(log.read(word), f"{word}_id", "v") == [(INSERT, 1, f"x{word}y")]
