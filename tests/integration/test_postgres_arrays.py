"""Arrays of PostgreSQL are lists in files and in Delta Lake: the same by SELECT and by log. What is no list is a bad value, and
jobs that have texts keep them (docs/adr/0032)."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.support.epochs import run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs import sinks as job_sinks
from tidemark.jobs.commands.plan import plan
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.spark.sessions import SparkSessions
from tidemark.readers.projection.settings import lines_of
from tidemark.sinks.sink import SinkNeeds
from tidemark.state.errors import SourceNotUsableError

pytestmark = pytest.mark.integration

LISTS: dict[str, tuple[str, pa.DataType, str]] = {
    "truths": ("bool[]", pa.bool_(), "{t,NULL,f}"),
    "smalls": ("smallint[]", pa.int16(), "{-32768,32767}"),
    "wholes": ("int[]", pa.int32(), "{1,NULL,-2147483648}"),
    "bigs": ("bigint[]", pa.int64(), "{9223372036854775807}"),
    "reals": ("real[]", pa.float32(), "{NaN,-Infinity,-0,1.5e10,0.1}"),
    "doubles": ("float8[]", pa.float64(), "{5e-324,NULL,0.1}"),
    "amounts": ("numeric(12,2)[]", pa.decimal128(12, 2), "{1.50,-9999999999.99}"),
    "numbers": ("numeric[]", pa.string(), "{NaN,12.300}"),
    "texts": ("text[]", pa.string(), r'{a,NULL,"NULL","","b,c","\"\\{}"," é😀"}'),
    "names": ("varchar(10)[]", pa.string(), "{x}"),
    "fixed": ("char(3)[]", pa.string(), '{"a  "}'),
    "uids": ("uuid[]", pa.string(), "{00000000-0000-4000-8000-000000000001,NULL}"),
    "days": ("date[]", pa.date32(), '{2024-02-29,"0044-03-15 BC",NULL}'),
    "moments": ("timestamp[]", pa.timestamp("us"), '{"2024-02-29 12:00:00.5","0044-03-15 12:00:00 BC"}'),
    "instants": ("timestamptz[]", pa.timestamp("us", tz="UTC"), '{"2024-02-29 12:00:00+00",NULL}'),
    "blobs": ("bytea[]", pa.binary(), r'{"\\x00ff","\\x"}'),
    "documents": ("jsonb[]", pa.string(), r'{"{\"a\": [1, null]}","null"}'),
    "matrix": ("int[][]", pa.int32(), "{1,2}"),
}
"""By column name: the source's type, the type of the elements in Parquet, a value."""


def make_table(database: Database, *, name: str = "t") -> None:
    columns = ", ".join(f"{column} {kind}" for column, (kind, _, _) in LISTS.items())
    database.execute("CREATE SCHEMA IF NOT EXISTS shop", f"CREATE TABLE shop.{name} (id int PRIMARY KEY, {columns})")


def insert_rows(database: Database, *ids: int, name: str = "t") -> None:
    """Inserts rows with every value, with empty arrays and with nulls."""
    for number in ids:
        values = [f"'{value}'" for _, _, value in LISTS.values()]
        empty = ", ".join(["'{}'"] * len(LISTS))
        database.execute(
            f"INSERT INTO shop.{name} VALUES ({number}, {', '.join(values)}), ({number + 1}, {empty})",
            f"INSERT INTO shop.{name} (id) VALUES ({number + 2})",
        )


def make_job(database: Database, folder: Path, *, sink: dict[str, Any] | None = None, **changes: Any) -> Path:
    files = {"type": "files", "path": str(folder / "out")}
    job = {"source": source_of(database, tables=["shop.*"]), "sink": files | (sink or {})}
    return write_job(folder, **(job | changes))


def by_id(folder: Path, table: str = "t") -> dict[int, dict[str, Any]]:
    """The newest row of each key, dates and times as numbers."""
    files = sorted((folder / "out" / f"shop.{table}").glob("*.parquet"))
    rows = pa.concat_tables([pq.ParquetFile(file).read() for file in files], promote_options="default")
    rows = rows.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])
    for place, field in enumerate(rows.schema):
        if pa.types.is_list(field.type) and pa.types.is_temporal(field.type.value_type):
            width = pa.int32() if pa.types.is_date(field.type.value_type) else pa.int64()
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.list_(width)))
    return {row["id"]: row for row in rows.to_pylist() if row["_change_type"] != "truncate"}


def test_snapshot_and_log_give_the_same_lists(postgres_source_database: Database, tmp_path: Path) -> None:
    source = postgres_source_database
    make_table(source)
    insert_rows(source, 1)
    path = make_job(source, tmp_path)
    run_epochs(path)
    insert_rows(source, 11)
    source.execute("ALTER TABLE shop.t ALTER texts SET STORAGE EXTERNAL")  # long values stay out of an update
    source.execute("UPDATE shop.t SET texts = array_fill(repeat('x', 500), ARRAY[20]) WHERE id = 13")
    run_epochs(path)
    source.execute("UPDATE shop.t SET smalls = '{7}' WHERE id = 13")
    run_epochs(path)
    schema = ds.dataset(tmp_path / "out" / "shop.t", format="parquet", exclude_invalid_files=False).schema
    assert {name: schema.field(name).type.value_type for name in LISTS} == {
        n: kind for n, (_, kind, _) in LISTS.items()
    }
    rows = by_id(tmp_path)
    for name in LISTS:
        assert repr(rows[1][name]) == repr(rows[11][name]), name
        assert rows[1][name], name
        assert (rows[2][name], rows[12][name], rows[3][name]) == ([], [], None), name
    first = rows[1]
    assert first["texts"] == ["a", None, "NULL", "", "b,c", '"\\{}', " é😀"]
    assert first["wholes"] == [1, None, -(2**31)]
    assert first["truths"] == [True, None, False]
    assert [str(amount) for amount in first["amounts"]] == ["1.50", "-9999999999.99"]
    assert first["blobs"] == [b"\0\xff", b""]
    assert first["days"] == [19782, -735160, None]
    assert first["documents"] == ['{"a": [1, null]}', "null"]
    assert (rows[13]["smalls"], rows[13]["texts"], rows[13]["_unchanged"]) == ([7], None, ["texts"])


def test_json_lines_have_arrays(postgres_source_database: Database, tmp_path: Path) -> None:
    source = postgres_source_database
    make_table(source)
    insert_rows(source, 1)
    run_epochs(make_job(source, tmp_path, sink={"format": "jsonl"}))
    files = [file for file in (tmp_path / "out" / "shop.t").iterdir() if file.suffix == ".jsonl"]
    rows = {row["id"]: row for file in files for row in map(json.loads, file.read_text().splitlines())}
    first = rows[1]
    assert first["texts"] == ["a", None, "NULL", "", "b,c", '"\\{}', " é😀"]
    assert first["reals"] == ["NaN", "-Infinity", -0.0, 1.5e10, 0.1]
    assert first["amounts"] == ["1.50", "-9999999999.99"]
    assert first["instants"] == ["2024-02-29T12:00:00.000000Z", None]
    assert first["blobs"] == ["AP8=", ""]
    assert (rows[2]["texts"], rows[3]["texts"]) == ([], None)


@pytest.mark.pitfall(109)
@pytest.mark.parametrize("in_log", [False, True], ids=["snapshot", "log"])
def test_an_array_that_is_no_list_is_a_bad_value(
    postgres_source_database: Database, tmp_path: Path, in_log: bool
) -> None:
    source = postgres_source_database
    make_table(source)
    path = make_job(source, tmp_path)
    if in_log:
        run_epochs(path)
    source.execute(
        "INSERT INTO shop.t (id, wholes, matrix) VALUES (1, '[0:1]={1,2}', '{{1,2},{3,4}}'), (2, '{3}', '{4}')"
    )
    with pytest.raises(SourceNotUsableError, match=r"shop\.t\.wholes holds an array of several dimensions, or one"):
        run_epochs(path)
    run_epochs(path, "sink.on_bad_value=null")
    rows = by_id(tmp_path)
    assert [(rows[n]["wholes"], rows[n]["matrix"]) for n in (1, 2)] == [(None, None), ([3], [4])]


def test_a_parked_table_comes_back_with_texts(postgres_source_database: Database, tmp_path: Path) -> None:
    source = postgres_source_database
    source.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (id int PRIMARY KEY, matrix int[][], wholes int[])",
        "CREATE TABLE shop.other (id int PRIMARY KEY)",
    )
    section = source_of(source, tables=["shop.*"], on_table_error="park")
    path = make_job(source, tmp_path, source=section)
    run_epochs(path)
    source.execute("INSERT INTO shop.t VALUES (1, '{{1,2},{3,4}}', '{1}')")
    run_epochs(path)
    as_text = {"shop.t": {"as_text": ["matrix"]}}
    path = make_job(source, tmp_path, source=section | {"columns": as_text})
    assert list(lines_of(load_job_file(path))) == ["shop.t: matrix as text"]
    resnapshot(load_job_file(path), [TableName("shop", "t")])
    run_epochs(path)
    assert by_id(tmp_path)[1].items() >= {"matrix": "{{1,2},{3,4}}", "wholes": [1]}.items()
    wrong = make_job(
        source, tmp_path, source=section | {"columns": {"shop.t": {"as_text": ["id"]}}}, checkpoint="./other"
    )
    with pytest.raises(SourceNotUsableError, match=r"names id of shop\.t in as_text, but no copy has it as lists"):
        run_epochs(wrong)


def test_a_job_of_an_earlier_version_keeps_texts(
    postgres_source_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = postgres_source_database
    source.execute("CREATE SCHEMA shop", "CREATE TABLE shop.t (id int PRIMARY KEY, wholes int[])")
    source.execute("INSERT INTO shop.t VALUES (1, '{1}')")
    path = make_job(source, tmp_path)
    with monkeypatch.context() as before:
        before.setattr(job_sinks, "files_needs", lambda _: SinkNeeds("files", published_format="parquet"))
        run_epochs(path)
    source.execute(
        "INSERT INTO shop.t VALUES (2, '{{2}}')", "CREATE TABLE shop.later (id int PRIMARY KEY, wholes int[])"
    )
    source.execute("INSERT INTO shop.later VALUES (3, '{3}')")
    run_epochs(path)
    assert [row["wholes"] for row in by_id(tmp_path).values()] == ["{1}", "{{2}}"]
    assert by_id(tmp_path, "later")[3]["wholes"] == "{3}"
    resnapshot(load_job_file(path), [TableName("shop", "t")])
    run_epochs(path)
    source.execute("INSERT INTO shop.t VALUES (4, '{4}')", "ALTER TABLE shop.t ADD COLUMN more int[]")
    source.execute("INSERT INTO shop.t VALUES (5, '{5}', '{6}')")
    run_epochs(path, "sink.on_schema_change=evolve")
    rows = by_id(tmp_path)
    assert {number: row["wholes"] for number, row in rows.items()} == {
        1: "{1}", 2: "{{2}}", 4: "{4}", 5: "{5}",
    }  # fmt: skip
    assert rows[5]["more"] == "{6}"


def test_masks_and_transforms_see_lists_but_a_hash_is_of_the_text(
    postgres_source_database: Database, tmp_path: Path
) -> None:
    source = postgres_source_database
    columns = {"shop.t": {"mask": {"hashed": "sha256", "hidden": "redact", "gone": "null"}}}
    source.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (id int PRIMARY KEY, tags text[], hashed int[], hidden int[], gone int[])",
        "ALTER TABLE shop.t REPLICA IDENTITY FULL",
        "INSERT INTO shop.t VALUES (1, '{a,b}', '{1,2}', '{3}', '{4}')",
    )
    path = make_job(
        source,
        tmp_path,
        source=source_of(source, tables=["shop.*"], columns=columns),
        transforms={"shop.t": "SELECT *, tags[1] AS first, len(tags) AS many FROM input"},
    )
    run_epochs(path)
    source.execute("INSERT INTO shop.t VALUES (2, '{a,b}', '{1,2}', '{3}', '{4}')")
    run_epochs(path)
    rows = by_id(tmp_path)
    for number in (1, 2):
        ((digest,),) = source.query("SELECT encode(sha256('{1,2}'), 'hex')")
        found = {name: value for name, value in rows[number].items() if not name.startswith("_")}
        assert found == {
            "id": number, "tags": ["a", "b"], "hashed": digest, "hidden": "***", "gone": None, "first": "a", "many": 2,
        }  # fmt: skip
    schema = read_history(tmp_path / "out", "shop", "t").schema
    assert schema.field("gone").type.value_type == pa.int32()


def test_arrays_of_a_key_stay_text(
    postgres_source_database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = postgres_source_database
    source.execute(
        "CREATE SCHEMA shop",
        "CREATE TABLE shop.t (path int[] PRIMARY KEY, tags text[])",
        "INSERT INTO shop.t VALUES ('{1,2}', '{a}'), ('{{3}}', '{b}')",
    )
    path = make_job(source, tmp_path)
    plan(load_job_file(path))
    assert "columns   shop.t: tags as list<string>\n" in capsys.readouterr().out
    run_epochs(path)
    source.execute("UPDATE shop.t SET tags = '{c}' WHERE path = '{1,2}'", "DELETE FROM shop.t WHERE path = '{{3}}'")
    run_epochs(path)
    rows = read_history(tmp_path / "out", "shop", "t").to_pylist()
    assert [(row["path"], row["tags"], row["_change_type"]) for row in rows[-2:]] == [
        ("{1,2}", ["c"], "update_postimage"),
        ("{{3}}", None, "delete"),
    ]


@pytest.mark.once_per_family
def test_small_files_with_lists_are_merged(postgres_source_database: Database, tmp_path: Path) -> None:
    source = postgres_source_database
    source.execute("CREATE SCHEMA shop", "CREATE TABLE shop.t (id int PRIMARY KEY, tags text[])")
    path = make_job(source, tmp_path, sink={"merge_small_files": True})
    run_epochs(path)
    for number in range(66):
        source.execute(f"INSERT INTO shop.t VALUES ({number}, '{{a,NULL,{number}}}')")
        run_epochs(path)
    assert any("-e" in file.name for file in (tmp_path / "out" / "shop.t").glob("e*-log.parquet"))
    assert {n: row["tags"] for n, row in by_id(tmp_path).items()} == {n: ["a", None, str(n)] for n in range(66)}
    source.execute("ALTER TABLE shop.t ADD COLUMN more date[]", "INSERT INTO shop.t VALUES (66, '{}', '{2024-02-29}')")
    run_epochs(path, "sink.on_schema_change=evolve")
    rows = by_id(tmp_path)
    assert (rows[65]["more"], rows[66]["more"], rows[66]["tags"]) == (None, [19782], [])


@pytest.mark.parametrize("style", ["mirror", "changelog"])
def test_delta_tables_have_arrays(
    postgres18_database: Database,
    tmp_path: Path,
    delta_session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    style: str,
) -> None:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source = postgres18_database
    make_table(source)
    insert_rows(source, 1)
    path = make_job(source, tmp_path, sink={"type": "delta", "path": str(tmp_path / "lake"), "style": style})
    run_epochs(path)
    insert_rows(source, 11)
    source.execute("UPDATE shop.t SET wholes = '{8,NULL}' WHERE id = 2")
    run_epochs(path)
    table = delta_session.read.format("delta").load(str(tmp_path / "lake" / "shop.t"))
    assert dict(table.dtypes)["instants"] == "array<timestamp>"
    assert dict(table.dtypes)["moments"] == "array<timestamp_ntz>"
    assert dict(table.dtypes)["amounts"] == "array<decimal(12,2)>"
    texts = [f"to_json({name}) AS {name}" for name in LISTS]  # Python has no dates before Christ
    rows = {
        row["id"]: row
        for row in table.orderBy("id", *(["_commit_version"] if style == "changelog" else []))
        .selectExpr("id", *texts)
        .collect()
    }
    for name in LISTS:
        assert rows[1][name] == rows[11][name] != "[]", name
        assert (rows[12][name], rows[3][name]) == ("[]", None), name
    assert json.loads(rows[1]["texts"]) == ["a", None, "NULL", "", "b,c", '"\\{}', " é😀"]
    assert json.loads(rows[1]["days"])[0] == "2024-02-29"
    assert json.loads(rows[2]["wholes"]) == [8, None]


@pytest.mark.every_server
def test_delta_tables_of_an_earlier_version_keep_texts(
    postgres18_database: Database, tmp_path: Path, delta_session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SparkSessions, "open", lambda *_: delta_session)
    source = postgres18_database
    source.execute("CREATE SCHEMA shop", "CREATE TABLE shop.t (id int PRIMARY KEY, wholes int[])")
    source.execute("INSERT INTO shop.t VALUES (1, '{1}')")
    path = make_job(source, tmp_path, sink={"type": "delta", "path": str(tmp_path / "lake"), "style": "mirror"})
    with monkeypatch.context() as before:
        needs = job_sinks.delta_needs
        before.setattr(job_sinks, "delta_needs", lambda settings: replace(needs(settings), takes_lists=False))
        run_epochs(path)
    source.execute("INSERT INTO shop.t VALUES (2, '{{2}}')")
    run_epochs(path)
    resnapshot(load_job_file(path), [TableName("shop", "t")])
    run_epochs(path)
    source.execute("INSERT INTO shop.t VALUES (3, '{}')")
    run_epochs(path)
    table = delta_session.read.format("delta").load(str(tmp_path / "lake" / "shop.t"))
    assert dict(table.dtypes)["wholes"] == "string"
    assert [tuple(row) for row in table.orderBy("id").collect()] == [(1, "{1}"), (2, "{{2}}"), (3, "{}")]
