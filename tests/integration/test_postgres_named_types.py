"""Enums and citext of PostgreSQL in a copy in PostgreSQL: it has such types, too, and gets the labels that the source gets.
docs/adr/0065."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_postgres_types_kept import texts_of, types_of
from tests.support.epochs import die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.reconciling import assert_equal, compared, found_keys
from tests.support.servers import Database, fresh_database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.readers.postgres.snapshot import split_reader
from tidemark.readers.postgres.snapshot.split_reader import ReadHooks
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.state.errors import SinkError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(37)]

MOOD = "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')"
ODD_LABELS = ["it's", '"q"', "a b", " lead", "100%", "%s", "ä€😀", "NULL", "a,b", "{x}", "back\\slash", "", "x" * 63]


@pytest.fixture
def source(postgres_source_database: Database) -> Database:
    return postgres_source_database


@pytest.fixture
def target(source: Database) -> Iterator[Database]:
    with fresh_database(source.server) as database:
        yield database


def labels_of(database: Database, enum: str) -> list[str]:
    sql = f"SELECT enumlabel FROM pg_enum WHERE enumtypid = '{enum}'::regtype ORDER BY enumsortorder"
    return [label for (label,) in database.query(sql)]


def job_of(origin: Database, target: Database, folder: Path, **changes: Any) -> Path:
    sink = {"type": "mirror", "url": target.url, "table": "{table}"} | changes.pop("sink", {})
    return write_job(folder, source=source_of(origin) | changes.pop("source", {}), sink=sink, **changes)


def literal(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def test_enums_are_kept_in_all_places(source: Database, target: Database, tmp_path: Path) -> None:
    """In values, keys, arrays and domains. Labels that come later have their place in the copy."""
    source.execute(
        MOOD,
        "CREATE DOMAIN good AS mood CHECK (VALUE <> 'sad')",
        "CREATE TABLE t (id int, m mood, v mood, many mood[], g good, PRIMARY KEY (m, id))",
        "INSERT INTO t SELECT i, (enum_range(NULL::mood))[i % 3 + 1], 'ok', '{sad,NULL}', 'ok' FROM generate_series(1, 50) i",
    )
    path = job_of(source, target, tmp_path, snapshot={"split_rows": 10, "parallelism": 2})
    run_epochs(path)
    assert types_of(target, "t") == {"id": "integer", "m": "mood", "v": "mood", "many": "mood[]", "g": "mood"}
    assert labels_of(target, "mood") == ["sad", "ok", "happy"]
    assert texts_of(target, "t", "id") == texts_of(source, "t", "id")
    source.execute(
        "ALTER TYPE mood ADD VALUE 'glad' BEFORE 'happy'",
        "ALTER TYPE mood ADD VALUE 'worst' BEFORE 'sad'",
        "ALTER TYPE mood ADD VALUE 'last one'",
        "UPDATE t SET m = 'glad' WHERE id = 7",
        "UPDATE t SET v = 'worst', many = '[0:1]={\"last one\",worst}' WHERE id < 5",
        "DELETE FROM t WHERE id = 9",
        "INSERT INTO t VALUES (99, 'worst', NULL, '{{sad},{ok}}', 'glad'), (9, 'last one', 'ok', NULL, NULL)",
    )
    run_epochs(path)
    assert labels_of(target, "mood") == ["worst", "sad", "ok", "glad", "happy", "last one"]
    assert texts_of(target, "t", "id") == texts_of(source, "t", "id")
    (result,) = compared(path).values()
    assert (result.rows, result.differences) == (51, 0)


def test_odd_names_and_labels(source: Database, target: Database, tmp_path: Path) -> None:
    listed = ", ".join(map(literal, ODD_LABELS[:-1]))
    last = literal(ODD_LABELS[-1])
    source.execute(
        'CREATE SCHEMA "Odd %s ""S"',
        f'CREATE TYPE "Odd %s ""S"."Ty pe%" AS ENUM ({listed})',
        'CREATE TABLE t (v "Odd %s ""S"."Ty pe%" PRIMARY KEY, many "Odd %s ""S"."Ty pe%"[], n int)',
        'INSERT INTO t SELECT l, ARRAY[l, NULL, l], 1 FROM unnest(enum_range(NULL::"Odd %s ""S"."Ty pe%")) l',
    )
    path = job_of(source, target, tmp_path)
    run_epochs(path)
    name = '"Odd %s ""S_Ty pe%"'
    assert types_of(target, "t") == {"v": name, "many": f"{name}[]", "n": "integer"}
    source.execute(
        f'ALTER TYPE "Odd %s ""S"."Ty pe%" ADD VALUE {last} BEFORE \'it\'\'s\'',
        f'INSERT INTO t VALUES ({last}, ARRAY[{last}, \'a b\']::"Odd %s ""S"."Ty pe%"[], 2)',
        "UPDATE t SET n = 3 WHERE v = '100%'",
        "DELETE FROM t WHERE v = '%s'",
    )
    run_epochs(path)
    assert labels_of(target, name) == [ODD_LABELS[-1], *ODD_LABELS[:-1]]
    assert texts_of(target, "t", "v::text") == texts_of(source, "t", "v::text")
    (result,) = compared(path).values()
    assert (result.rows, result.differences) == (len(ODD_LABELS) - 1, 0)


def test_enums_of_two_schemas_do_not_mix(source: Database, target: Database, tmp_path: Path) -> None:
    source.execute(
        "CREATE SCHEMA a",
        "CREATE SCHEMA b",
        "CREATE TYPE a.kind AS ENUM ('x')",
        "CREATE TYPE b.kind AS ENUM ('y')",
        "CREATE TYPE kind AS ENUM ('z')",
        "CREATE TABLE a.one (id int PRIMARY KEY, v a.kind, w kind)",
        "CREATE TABLE b.two (id int PRIMARY KEY, v b.kind)",
        "INSERT INTO a.one VALUES (1, 'x', 'z')",
        "INSERT INTO b.two VALUES (1, 'y')",
    )
    run_epochs(job_of(source, target, tmp_path, source={"tables": ["a.*", "b.*"]}))
    assert types_of(target, "one") == {"id": "integer", "v": "a_kind", "w": "kind"}
    assert types_of(target, "two") == {"id": "integer", "v": "b_kind"}
    assert [labels_of(target, enum) for enum in ("a_kind", "b_kind", "kind")] == [["x"], ["y"], ["z"]]


def test_types_of_other_schemas_of_the_search_path_are_not_used(
    source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute(MOOD, "CREATE TABLE t (id int PRIMARY KEY, v mood)", "INSERT INTO t VALUES (1, 'happy')")
    target.execute(
        "CREATE SCHEMA copy",
        "CREATE TYPE public.mood AS ENUM ('other')",
        "CREATE TYPE public.public_mood AS ENUM ('other')",
    )
    run_epochs(job_of(source, target, tmp_path, sink={"table": "copy.{table}"}))
    assert types_of(target, "copy.t")["v"] == "copy.public_mood"
    assert labels_of(target, "public.public_mood") == ["other"]


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("CREATE TYPE mood AS (a int)", "text"),
        ("CREATE TABLE mood (id int PRIMARY KEY)", "text"),
        ("CREATE DOMAIN mood AS text", "text"),
        ("CREATE TYPE mood AS ENUM ('happy', 'x', 'ok', 'sad')", "mood"),
        ("CREATE TYPE mood AS ENUM ('x', 'happy')", "mood"),
    ],
)
def test_types_of_that_name_that_the_target_has(
    made: str, kind: str, source: Database, target: Database, tmp_path: Path
) -> None:
    source.execute(MOOD, "CREATE TABLE t (id int PRIMARY KEY, v mood)", "INSERT INTO t VALUES (1, 'happy'), (2, 'sad')")
    target.execute(made)
    run_epochs(job_of(source, target, tmp_path))
    assert types_of(target, "t")["v"] == kind
    assert texts_of(target, "t", "id") == texts_of(source, "t", "id")


def test_a_table_with_the_name_of_a_type(source: Database, target: Database, tmp_path: Path) -> None:
    source.execute(
        "CREATE SCHEMA other",
        MOOD,
        "CREATE TABLE other.mood (id int PRIMARY KEY)",
        "CREATE TABLE t (id int PRIMARY KEY, v mood)",
        "INSERT INTO t VALUES (1, 'happy')",
        "INSERT INTO other.mood VALUES (7)",
    )
    run_epochs(job_of(source, target, tmp_path, source={"tables": ["public.*", "other.*"]}))
    assert types_of(target, "t")["v"] == "text"
    assert target.query("SELECT id FROM mood") == [(7,)]


def test_copies_with_other_columns(source: Database, target: Database, tmp_path: Path) -> None:
    """One with text goes on, an enum with all labels is accepted, and others are refused."""
    source.execute(
        MOOD,
        "CREATE TABLE t (id int PRIMARY KEY, v mood, w mood)",
        "INSERT INTO t VALUES (1, 'happy', 'sad')",
        "CREATE TABLE texts (id int PRIMARY KEY, v text)",
    )
    target.execute(
        "CREATE TYPE own AS ENUM ('happy', 'more', 'ok', 'sad')",
        "CREATE TABLE t (id int PRIMARY KEY, v text, w own)",
        "CREATE TABLE texts (id int PRIMARY KEY, v own)",
    )
    path = job_of(source, target, tmp_path)
    with pytest.raises(SinkError, match=r"column v is public\.own, which can't hold every text"):
        run_epochs(path)
    target.execute("DROP TABLE texts")
    run_epochs(path)
    source.execute("ALTER TYPE mood ADD VALUE 'new' BEFORE 'ok'", "UPDATE t SET v = 'new', w = 'new'")
    run_epochs(path)
    assert types_of(target, "t") == {"id": "integer", "v": "text", "w": "own"}
    assert labels_of(target, "own") == ["happy", "more", "ok", "sad", "new"]  # after sad, as in the source
    assert target.query("SELECT v, w FROM t") == [("new", "new")]


def test_an_enum_of_another_role(source: Database, target: Database, tmp_path: Path) -> None:
    """It is used if it has all labels. Later ones are refused with a remedy that works."""
    source.execute(MOOD, "CREATE TABLE t (id int PRIMARY KEY, v mood)", "INSERT INTO t VALUES (1, 'happy')")
    target.execute(
        f"CREATE ROLE {target.name}_owner",
        "CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')",
        "CREATE TYPE lacking AS ENUM ('sad', 'ok')",
        f"CREATE ROLE {target.name}_mirror LOGIN PASSWORD 'secret'",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {target.name}_mirror, {target.name}_owner",
        f"ALTER TYPE mood OWNER TO {target.name}_owner",
        f"ALTER TYPE lacking OWNER TO {target.name}_owner",
    )
    url = f"postgresql://{target.name}_mirror:secret@{target.url.partition('@')[2]}"
    try:
        path = job_of(source, target, tmp_path, sink={"url": url})
        run_epochs(path)
        assert types_of(target, "t")["v"] == "mood"
        source.execute("ALTER TYPE mood ADD VALUE 'new'", "UPDATE t SET v = 'new'")
        with pytest.raises(SinkError, match=r"labels that the target's enum public\.mood lacks.*: new") as raised:
            run_epochs(path)
        assert "ALTER TYPE … ADD VALUE" in raised.value.remedy
        target.execute("ALTER TYPE mood ADD VALUE 'new'")
        run_epochs(path)
        assert target.query("SELECT v FROM t") == [("new",)]
        source.execute("CREATE TYPE lacking AS ENUM ('sad', 'glad')", "CREATE TABLE u (id int PRIMARY KEY, v lacking)")
        run_epochs(path)
        assert types_of(target, "u")["v"] == "text"
    finally:
        target.execute(
            f"DROP OWNED BY {target.name}_mirror CASCADE",
            f"DROP OWNED BY {target.name}_owner CASCADE",
            f"DROP ROLE {target.name}_mirror",
            f"DROP ROLE {target.name}_owner",
        )


@pytest.mark.parametrize("parallelism", [1, 2])
def test_labels_that_come_between_plan_and_rows(
    parallelism: int, source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has not seen them, so that the writer adds them last. Also in a part that is written while it is read."""
    source.execute(
        MOOD,
        "CREATE TABLE t (id int PRIMARY KEY, v mood, many mood[])",
        "CREATE TABLE u (v mood PRIMARY KEY)",
        "INSERT INTO t SELECT i, 'ok', '{ok}' FROM generate_series(1, 30) i",
    )
    path = job_of(source, target, tmp_path, log={"apply_parallelism": parallelism})
    monkeypatch.setattr(MirrorSink, "add_labels", lambda *_: None)
    monkeypatch.setattr("tidemark.sinks.mirror.writer.CHUNK_BYTES", 1000)
    monkeypatch.setattr("tidemark.sinks.mirror.writer.MIN_BYTES", 1)
    run_epochs(path)
    source.execute(
        "ALTER TYPE mood ADD VALUE 'first' BEFORE 'sad'",
        "ALTER TYPE mood ADD VALUE 'then'",
        "INSERT INTO t SELECT i, 'ok', '{then}' FROM generate_series(100, 3000) i",
        "INSERT INTO u VALUES ('first'), ('then')",
        "DELETE FROM u WHERE v = 'then'",
        "UPDATE t SET v = 'first' WHERE id % 2 = 0",
    )
    run_epochs(path)
    assert sorted(labels_of(target, "mood")) == sorted(labels_of(source, "mood"))
    for table, key in (("t", "id"), ("u", "v")):
        assert texts_of(target, table, key) == texts_of(source, table, key)


@pytest.mark.parametrize("point", ["sink.after_type", "sink.after_labels"])
def test_deaths_between_types_tables_and_labels(point: str, source: Database, target: Database, tmp_path: Path) -> None:
    source.execute(
        MOOD,
        "CREATE TYPE kind AS ENUM ('a')",
        "CREATE TABLE t (id int PRIMARY KEY, v mood, k kind)",
        "INSERT INTO t VALUES (1, 'happy', 'a')",
    )
    path = job_of(source, target, tmp_path)
    if point == "sink.after_type":
        die_at(path, point)
    run_epochs(path)
    if point == "sink.after_labels":
        source.execute(
            "ALTER TYPE mood ADD VALUE 'new' AFTER 'sad'",
            "ALTER TYPE kind ADD VALUE 'b'",
            "INSERT INTO t VALUES (2, 'new', 'b')",
        )
        die_at(path, point)
        run_epochs(path)
        assert labels_of(target, "mood") == ["sad", "new", "ok", "happy"]
    assert types_of(target, "t") == {"id": "integer", "v": "mood", "k": "kind"}
    assert texts_of(target, "t", "id") == texts_of(source, "t", "id")


@pytest.mark.parametrize(
    "changed",
    [
        ["ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"],
        ["ALTER TYPE mood RENAME TO feeling", "ALTER TYPE feeling ADD VALUE 'blue' BEFORE 'sad'"],
        [
            "ALTER TYPE mood RENAME TO old",
            "CREATE TYPE mood AS ENUM ('blue', 'ok', 'happy')",
            "ALTER TABLE t ALTER v TYPE mood USING CASE v WHEN 'sad' THEN 'blue' ELSE v::text END::mood",
        ],
        [
            "ALTER TABLE t DROP COLUMN v",
            "DROP TYPE mood",
            "CREATE TYPE mood AS ENUM ('blue', 'ok', 'happy')",
            "ALTER TABLE t ADD COLUMN v mood",
        ],
    ],
)
def test_types_that_change_in_the_source(
    changed: list[str], source: Database, target: Database, tmp_path: Path
) -> None:
    """The table is read again."""
    source.execute(MOOD, "CREATE TABLE t (id int PRIMARY KEY, v mood)", "INSERT INTO t VALUES (1, 'sad'), (2, 'ok')")
    changes = {"source": {"on_table_error": "park"}, "sink": {"on_schema_change": "evolve"}}
    path = job_of(source, target, tmp_path, **changes)
    run_epochs(path)
    source.execute(*changed, "INSERT INTO t VALUES (3, 'blue')")
    run_epochs(path)
    source.execute("INSERT INTO t VALUES (4, 'happy')")
    run_epochs(path)
    order = "id, v"
    columns = "id, v::text"
    assert target.query(f"SELECT {columns} FROM t ORDER BY {order}") == source.query(
        f"SELECT {columns} FROM t ORDER BY {order}"
    )
    assert types_of(target, "t")["v"] == "mood"


def test_a_label_by_which_a_table_is_split_is_renamed_while_it_is_read(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no value any more. The table comes back by itself."""
    source.execute(
        MOOD,
        "CREATE TABLE t (m mood, id int, v int, PRIMARY KEY (m, id))",
        "INSERT INTO t SELECT (enum_range(NULL::mood))[i % 3 + 1], i, 0 FROM generate_series(1, 300) i",
        "ANALYZE t",
    )
    path = job_of(
        source,
        target,
        tmp_path,
        snapshot={"split_rows": 40, "parallelism": 2},
        source={"on_table_error": "park"},
        sink={"on_schema_change": "evolve"},
    )
    reads = [0]

    def change() -> None:
        reads[0] += 1
        if reads[0] == 4:
            source.execute("ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'", "UPDATE t SET v = 1 WHERE id % 2 = 0")

    monkeypatch.setattr(split_reader, "ReadHooks", lambda: ReadHooks(before_snapshot=change))
    run_epochs(path)
    assert reads[0] > 8
    assert texts_of(target, "t", "id") == texts_of(source, "t", "id")


def test_columns_of_new_enums_are_added(source: Database, target: Database, tmp_path: Path) -> None:
    source.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    path = job_of(source, target, tmp_path, sink={"on_schema_change": "evolve"})
    run_epochs(path)
    source.execute(
        MOOD,
        "ALTER TABLE t ADD COLUMN v mood, ADD COLUMN w mood DEFAULT 'ok'",
        "INSERT INTO t VALUES (2, 'sad', 'happy')",
    )
    run_epochs(path)
    assert types_of(target, "t") == {"id": "integer", "v": "mood", "w": "mood"}
    assert texts_of(target, "t", "id") == texts_of(source, "t", "id")


def test_two_jobs_share_a_type(source: Database, target: Database, tmp_path: Path) -> None:
    with fresh_database(source.server) as other:
        paths = []
        for i, database in enumerate((source, other)):
            labels = ["'sad', 'ok'", "'ok', 'wild'"][i]
            database.execute(f"CREATE TYPE mood AS ENUM ({labels})", f"CREATE TABLE t{i} (id int PRIMARY KEY, v mood)")
            database.execute(f"INSERT INTO t{i} SELECT 1, 'ok'")
            folder = tmp_path / str(i)
            folder.mkdir()
            paths.append(job_of(database, target, folder, job=f"job-{i}"))
            run_epochs(paths[-1])
        source.execute("ALTER TYPE mood ADD VALUE 'new'", "UPDATE t0 SET v = 'new'")
        other.execute("ALTER TYPE mood ADD VALUE 'new' BEFORE 'ok'", "UPDATE t1 SET v = 'new'")
        for path in paths:
            run_epochs(path)
        assert sorted(labels_of(target, "mood")) == ["new", "ok", "sad", "wild"]
        assert target.query("SELECT v::text FROM t0 UNION ALL SELECT v::text FROM t1") == [("new",), ("new",)]


def test_reconcile_finds_labels_that_the_copy_lacks(source: Database, target: Database, tmp_path: Path) -> None:
    """It adds none to the copy's enum. Damage is found by key."""
    source.execute(
        MOOD,
        "CREATE TABLE t (m mood, id int, v mood, many mood[], PRIMARY KEY (m, id))",
        "INSERT INTO t SELECT (enum_range(NULL::mood))[i % 3 + 1], i, 'ok', '{ok}' FROM generate_series(1, 20) i",
    )
    path = job_of(source, target, tmp_path)
    run_epochs(path)
    target.execute(
        "UPDATE t SET v = 'sad' WHERE id = 3", "DELETE FROM t WHERE id = 4", "UPDATE t SET id = 88 WHERE id = 5"
    )
    (result,) = compared(path).values()
    assert {key[1] for keys in found_keys(result).values() for key in keys} == {"3", "4", "5", "88"}
    target.execute(
        "UPDATE t SET v = 'ok' WHERE id = 3",
        "UPDATE t SET id = 5 WHERE id = 88",
        "INSERT INTO t SELECT (enum_range(NULL::mood))[2], 4, 'ok', '{ok}'",
    )
    source.execute(
        "ALTER TYPE mood ADD VALUE 'new'",
        "INSERT INTO t VALUES ('new', 40, 'new', '{new}')",
        "UPDATE t SET v = 'new' WHERE id = 7",
    )
    (result,) = compared(path).values()
    assert result.rows == 21
    assert result.differences + result.behind + result.moving == 2
    assert labels_of(target, "mood") == ["sad", "ok", "happy"]
    run_epochs(path)
    assert_equal(path, {"t": 21})


def with_citext(*databases: Database) -> None:
    for database in databases:
        database.execute("CREATE EXTENSION citext")


def test_citext_is_kept_outside_of_keys(source: Database, target: Database, tmp_path: Path) -> None:
    with_citext(source)
    target.execute("CREATE SCHEMA ext", "CREATE EXTENSION citext SCHEMA ext")
    source.execute(
        "CREATE DOMAIN email AS citext",
        "CREATE TABLE t (k citext PRIMARY KEY, v citext, many citext[], e email)",
        "INSERT INTO t VALUES ('A', 'Ab', '{Ab,NULL,\"a b\"}', 'X@y'), ('b', NULL, NULL, NULL)",
    )
    path = job_of(source, target, tmp_path)
    run_epochs(path)
    assert types_of(target, "t") == {"k": "text", "v": "ext.citext", "many": "ext.citext[]", "e": "ext.citext"}
    assert target.query("SELECT k FROM t WHERE v OPERATOR(ext.=) 'AB'::ext.citext") == [("A",)]
    source.execute("UPDATE t SET v = 'aB', e = 'x@Y' WHERE k = 'a'", "UPDATE t SET many = '{aB}' WHERE k = 'B'")
    run_epochs(path)
    assert texts_of(target, "t", "k") == texts_of(source, "t", "k")
    (result,) = compared(path).values()
    assert (result.rows, result.differences) == (2, 0)
    target.execute("UPDATE t SET v = 'AB' WHERE k = 'A'")
    (result,) = compared(path).values()
    assert result.differences == 1


@pytest.mark.parametrize("parallelism", [1, 2])
def test_keys_that_differ_only_in_case(
    parallelism: int, source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_citext(source, target)
    monkeypatch.setattr("tidemark.sinks.mirror.writer.CHUNK_BYTES", 500)
    monkeypatch.setattr("tidemark.sinks.mirror.writer.MIN_BYTES", 1)
    source.execute(
        "CREATE TABLE t (k citext PRIMARY KEY, v int)",
        "CREATE TABLE other (id int PRIMARY KEY, v citext)",
        "INSERT INTO t SELECT 'Key ' || i, i FROM generate_series(1, 100) i",
    )
    path = job_of(source, target, tmp_path, log={"apply_parallelism": parallelism})
    run_epochs(path)
    for spelling in ("upper", "lower", "initcap"):
        source.execute(
            f"UPDATE t SET k = {spelling}(k::text) WHERE v % 3 = 0",
            f"INSERT INTO other SELECT v, {spelling}(k::text) FROM t WHERE v % 3 = 1 "
            "ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v",
            "DELETE FROM t WHERE v % 3 = 1",
            "INSERT INTO t SELECT v, id FROM other",
        )
        run_epochs(path)
        assert texts_of(target, "t", "lower(k::text)") == texts_of(source, "t", "lower(k::text)")
    source.execute(
        "BEGIN; DELETE FROM t WHERE k = 'key 3'; INSERT INTO t VALUES ('KEY 3', 1); "
        "UPDATE t SET k = 'key 3' WHERE k = 'KEY 3'; DELETE FROM t WHERE k = 'KEY 3'; INSERT INTO t VALUES ('kEy 3', 2); COMMIT"
    )
    run_epochs(path)
    assert texts_of(target, "t", "lower(k::text)") == texts_of(source, "t", "lower(k::text)")


def test_citext_where_it_does_not_fit(source: Database, target: Database, tmp_path: Path) -> None:
    """Without the extension the copy has text. A key of citext is refused, as are other types than the source's."""
    with_citext(source)
    source.execute(
        "CREATE TABLE t (k citext PRIMARY KEY, v citext)",
        "CREATE TABLE texts (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES ('A', 'Ab')",
    )
    path = job_of(source, target, tmp_path)
    run_epochs(path)
    assert types_of(target, "t") == {"k": "text", "v": "text"}
    with fresh_database(source.server) as another:
        with_citext(another)
        another.execute(
            "CREATE TABLE t (k citext PRIMARY KEY, v citext)",
            "CREATE TABLE texts (id int PRIMARY KEY, v citext)",
        )
        (tmp_path / "another").mkdir()
        source_settings = {"slot": f"{source.name}_2", "publication": f"{source.name}_2"}
        path = job_of(source, another, tmp_path / "another", source=source_settings, job="another")
        with pytest.raises(SinkError, match=r"differ only in case.*can't hold every text"):
            run_epochs(path)


def test_types_into_other_targets_stay_texts(source: Database, mysql_database: Database, tmp_path: Path) -> None:
    with_citext(source)
    source.execute(
        MOOD,
        "CREATE TABLE t (id int PRIMARY KEY, v mood, many mood[], c citext)",
        "INSERT INTO t VALUES (1, 'ok', '{ok}', 'Ab')",
    )
    path = write_job(
        tmp_path, source=source_of(source), sink={"type": "mirror", "url": mysql_database.url, "table": "{table}"}
    )
    run_epochs(path)
    source.execute("ALTER TYPE mood ADD VALUE 'new'", "UPDATE t SET v = 'new'")
    run_epochs(path)
    assert mysql_database.query("SELECT v, many, c FROM t") == [("new", "{ok}", "Ab")]


def test_values_that_the_log_leaves_out_and_rows_that_stay_marked(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """Also where the key is an enum that moves to a new label."""
    source.execute(
        MOOD,
        "CREATE TABLE t (m mood, id int, many mood[], n int, PRIMARY KEY (m, id))",
        "ALTER TABLE t ALTER many SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT 'sad', i, array_fill('happy'::mood, ARRAY[5000]), 0 FROM generate_series(1, 5) i",
    )
    path = job_of(source, target, tmp_path, sink={"audit_columns": {"deleted": "gone"}})
    run_epochs(path)
    source.execute(
        "ALTER TYPE mood ADD VALUE 'new' AFTER 'sad'",
        "UPDATE t SET n = 1 WHERE id = 1",
        "UPDATE t SET m = 'new' WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "UPDATE t SET n = 2 WHERE id = 2",
    )
    run_epochs(path)
    columns = "m::text, id, array_length(many, 1), many[5000]::text, n"
    assert target.query(f"SELECT {columns} FROM t WHERE NOT gone ORDER BY id") == source.query(
        f"SELECT {columns} FROM t ORDER BY id"
    )
    assert target.query("SELECT m::text, id FROM t WHERE gone ORDER BY id") == [("sad", 2), ("sad", 3)]
    assert labels_of(target, "mood") == ["sad", "new", "ok", "happy"]


@pytest.mark.parametrize("kind", ["mysql_database", "mariadb_database"])
def test_an_enum_in_the_key_of_a_copy_elsewhere(
    source: Database, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """It is a text there, long enough for each label, also for later ones. Its order is another one."""
    target = request.getfixturevalue(kind)
    labels = [*ODD_LABELS, "Z", "z", "a", "A", "a ", "b", "ß", "ss"]
    listed = ", ".join(map(literal, labels))
    source.execute(
        f"CREATE TYPE word AS ENUM ({listed})",
        "CREATE TABLE t (w word, id int, note text, PRIMARY KEY (w, id))",
        "INSERT INTO t SELECT w, id, 'first' FROM unnest(enum_range(NULL::word)) AS w, generate_series(1, 3) AS id",
    )
    path = job_of(source, target, tmp_path, snapshot={"split_rows": 5, "parallelism": 2})
    run_epochs(path)
    assert_equal_texts(source, target)
    source.execute(
        f"ALTER TYPE word ADD VALUE {literal('y' * 63)} BEFORE 'Z'",
        f"INSERT INTO t VALUES ({literal('y' * 63)}, 1, 'new'), ('z', 4, 'new')",
        "UPDATE t SET note = 'second' WHERE id = 2 AND w::text ~ '^[aZ]'",
        "UPDATE t SET w = 'A', id = 9 WHERE w = 'a ' AND id = 1",
        "DELETE FROM t WHERE w = 'ss'",
    )
    run_epochs(path)
    assert_equal_texts(source, target)
    target.execute("DELETE FROM t WHERE w = 'Z' AND id = 1", "UPDATE t SET note = 'bad' WHERE id = 3 AND w = 'b'")
    (result,) = compared(path).values()
    assert (result.rows, result.differences) == (62, 2)
    resnapshot(load_job_file(path), [TableName(source.schema, "t")])
    run_epochs(path)
    assert_equal_texts(source, target)
    (result,) = compared(path).values()
    assert (result.rows, result.differences) == (62, 0)


def assert_equal_texts(source: Database, target: Database) -> None:
    assert sorted(target.query("SELECT w, id, note FROM t")) == sorted(source.query("SELECT w::text, id, note FROM t"))
