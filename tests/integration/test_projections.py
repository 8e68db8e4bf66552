"""Jobs that leave out, mask and transform columns: rows by SELECT and by log become the same, and no hidden value is
left anywhere."""

import hmac
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.altered_tables import folded
from tests.support.cli import CommandLine, tidemark  # noqa: F401  # a fixture
from tests.support.epochs import run_epochs
from tests.support.history import assert_copied, read_history
from tests.support.jobs import source_of, write_job
from tests.support.remedies import run_command, what_is_told
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.spark.stream_source import table_schema
from tidemark.state.errors import CheckpointError, JobFileError, SourceNotUsableError, TidemarkError
from tidemark.state.remedies import START_OVER
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

SECRET = "plainly-secret"
KEY = "a key that nobody knows"
ORDERS = (
    "SELECT * EXCLUDE (note), version * 2 + 1 AS doubled, CASE WHEN amount > 100 THEN 'big' ELSE 'small' END AS size "
)
COLUMNS = {
    "orders": {"exclude": ["at"], "mask": {"note": "redact"}},
    "customers": {"mask": {"note": "sha256"}},
    "order_lines": {"exclude": ["note"], "mask": {"quantity": "null"}},
}


def projecting_job(folder: Path, source: Database, sink: dict[str, Any]) -> Path:
    columns = {f"{source.schema}.{table}": settings for table, settings in COLUMNS.items()}
    return write_job(
        folder,
        source=source_of(source, columns=columns, mask_key=KEY),
        snapshot={"split_rows": 100, "parallelism": 2},
        transforms={f"{source.schema}.orders": f"{ORDERS} FROM input"},
        sink=sink,
    )


def digest(note: object) -> str | None:
    return None if note is None else hmac.new(KEY.encode(), str(note).encode(), "sha256").hexdigest()


def assert_hidden(*folders: Path) -> None:
    """Asserts that neither the secret nor the key is in any file, also where a file's columns are not compressed."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    for path in files:
        found = re.search(f"{SECRET}|{KEY}".encode(), path.read_bytes())
        assert found is None, path


def make_tables(source: Database) -> Uids:
    uids = Uids()
    create_tables(source, rows=400, uids=uids)
    for table in COLUMNS:
        secret = f"'{SECRET}'::bytea" if source.kind == "postgres" and table == "order_lines" else f"'{SECRET}'"
        source.execute(f"UPDATE {table} SET note = {secret} WHERE uid % 3 = 0")
    return uids


@contextmanager
def changing(source: Database, uids: Uids, seed: int) -> Iterator[None]:
    """Random writers, and secrets that come, move and go."""
    values = [uids.take(1)[0] for _ in range(2)]
    with Writers(source, uids, count=2, seed=seed, pause_seconds=0.02):
        source.execute(
            f"INSERT INTO customers (code, uid, version, note) VALUES ('s1-{seed}', {values[0]}, 1, '{SECRET}')",
            f"INSERT INTO customers (code, uid, version, note) VALUES ('s2-{seed}', {values[1]}, 1, NULL)",
            f"UPDATE customers SET version = version + 1, note = '{SECRET}' WHERE code = 's2-{seed}'",
            f"UPDATE customers SET version = version + 1, code = 's3-{seed}' WHERE code = 's1-{seed}'",
            f"DELETE FROM customers WHERE code = 's2-{seed}'",
        )
        yield


def test_files(projected_source: Database, tmp_path: Path) -> None:
    source, out = projected_source, tmp_path / "out"
    uids = make_tables(source)
    job = projecting_job(tmp_path, source, {"type": "files", "path": str(out)})
    run_epochs(job, at_most=1)
    assert list((tmp_path / "checkpoint" / "published").iterdir())
    assert_hidden(tmp_path / "checkpoint", out)
    for seed in (1, 2):
        with changing(source, uids, seed):
            run_epochs(job)
    run_epochs(job)
    assert_hidden(tmp_path / "checkpoint", out)
    assert assert_copied(out, source) > 1200

    orders = read_history(out, source.schema, "orders")
    assert orders.schema.names[:6] == ["id", "uid", "version", "amount", "doubled", "size"]
    assert not set(orders["_is_snapshot"].to_pylist()) ^ {True, False}
    for row in orders.to_pylist():
        assert row["doubled"] == row["version"] * 2 + 1
        assert row["size"] == ("big" if row["amount"] is not None and row["amount"] > 100 else "small")
    customers = read_history(out, source.schema, "customers")
    now = dict(source.query("SELECT code, note FROM customers"))
    # By key: a row that moved between two splits is in both, each with the version of the start.
    last = {row["code"]: row["note"] for row in customers.to_pylist() if row["_change_type"] != "delete"}
    kept = [row for row in customers.to_pylist() if row.get("_unchanged")]
    left_out = {row["code"] for row in kept}
    assert {code: last[code] for code in now if code not in left_out} == {
        code: digest(note) for code, note in now.items() if code not in left_out
    }
    assert all(row["note"] is None for row in kept)
    lines = read_history(out, source.schema, "order_lines")
    assert "note" not in lines.schema.names
    assert set(lines["quantity"].to_pylist()) == {None}


@pytest.fixture(params=["mysql", "pg18"])
def projected_source(request: pytest.FixtureRequest) -> Database:
    database: Database = request.getfixturevalue(
        "mysql_database" if request.param == "mysql" else "postgres18_database"
    )
    return database


def test_mirrors(projected_source: Database, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = projected_source
    target: Database = request.getfixturevalue("postgres_database" if source.kind == "mysql" else "mysql_database")
    uids = make_tables(source)
    job = projecting_job(tmp_path, source, {"type": "mirror", "url": target.url, "table": "{table}"})
    run_epochs(job, at_most=1)
    assert list((tmp_path / "checkpoint" / "published").iterdir())
    assert_hidden(tmp_path / "checkpoint")
    with changing(source, uids, 3):
        run_epochs(job)
    with changing(source, uids, 4):
        run_epochs(job)
    run_epochs(job)
    assert_hidden(tmp_path / "checkpoint")
    states = "SELECT id, uid, version, amount FROM orders ORDER BY id"
    assert target.query("SELECT id, uid, version, amount, doubled, size FROM orders ORDER BY id") == [
        (*row, row[2] * 2 + 1, "big" if row[3] is not None and row[3] > 100 else "small")
        for row in source.query(states)
    ]
    notes = "SELECT uid, version, note FROM customers ORDER BY uid"
    assert target.query(notes) == [(uid, version, digest(note)) for uid, version, note in source.query(notes)]
    lines = "SELECT order_id, line_no, uid, version FROM order_lines ORDER BY uid"
    assert target.query(lines) == source.query(lines)
    assert target.query("SELECT count(quantity) FROM order_lines") == [(0,)]


def test_settings_that_change_later_stop_the_job(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT, d INT)", "INSERT INTO t VALUES (1, 2, 3, 4)"
    )
    table = f"{mysql_database.name}.t"
    job = write_job(
        tmp_path,
        source=source_of(mysql_database, columns={table: {"mask": {"a": "sha256"}}}, mask_key=KEY),
        transforms={table: "SELECT id, a, b + 1 AS c FROM input"},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job)
    for override, what in [
        (f"source.columns.{table}.exclude=[d]", "exclude"),
        (f"source.columns.{table}.mask={{}}", "mask"),
        (f"source.columns.{table}.mask={{a: redact}}", "mask"),
        ("source.mask_key=another key that nobody knows", "source.mask_key"),
        (f"transforms.{table}=SELECT *, b + 2 AS c FROM input", "transforms"),
        ("transforms={}", "transforms"),
    ]:
        with pytest.raises(CheckpointError, match=f"{what}.* differs from when the job was started"):
            run_epochs(job, override)
    mysql_database.execute("CREATE TABLE u (id INT PRIMARY KEY, a INT)", "INSERT INTO u VALUES (1, 2)")
    run_epochs(job, f"source.columns.{mysql_database.name}.u.mask={{a: redact}}")
    assert read_history(tmp_path / "out", mysql_database.name, "u")["a"].to_pylist() == ["***"]
    with pytest.raises(CheckpointError, match=r"u\".mask differs from when"):
        run_epochs(job)


@pytest.mark.once_per_family
def test_a_signal_lets_a_transform_change_on_which_a_row_of_the_log_failed(
    any_source_database: Database, tmp_path: Path
) -> None:
    database = any_source_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, a VARCHAR(9))", "INSERT INTO t VALUES (1, '5')")
    if database.kind == "postgres":
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    table = f"{database.schema}.t"
    job = write_job(
        tmp_path,
        source=source_of(database),
        transforms={table: "SELECT id, CAST(a AS INTEGER) AS a FROM input"},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    run_epochs(job)
    database.execute("INSERT INTO t VALUES (2, 'x')")
    with pytest.raises(JobFileError):
        run_epochs(job)
    corrected = f"transforms.{table}=SELECT id, TRY_CAST(a AS INTEGER) AS a FROM input"
    with pytest.raises(CheckpointError, match="differs from when the job was started") as caught:
        run_epochs(job, corrected)
    assert f"tidemark signal JOB.yaml resnapshot --table {table}" in caught.value.remedy
    resnapshot(load_job_file(job), [TableName(database.schema, "t")])
    run_epochs(job, corrected)
    assert folded(tmp_path, database, "id", "a") == [(1, 5), (2, None)]


@pytest.mark.parametrize("policy", ["park", pytest.param("stop", marks=pytest.mark.every_server)])
def test_a_transform_that_fails_on_a_row_is_the_trouble_of_its_table(
    mysql_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,  # noqa: F811
    policy: str,
) -> None:
    for name in "tu":
        mysql_database.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, a VARCHAR(9))", f"INSERT INTO {name} VALUES (1, '5')"
        )
    table, sink = f"{mysql_database.name}.t", {"type": "files", "path": str(tmp_path / "out")}
    sql = {table: "SELECT id, CAST(a AS INTEGER) AS a FROM input"}
    job = write_job(tmp_path, source=source_of(mysql_database, on_table_error=policy), transforms=sql, sink=sink)
    run_epochs(job)
    mysql_database.execute("INSERT INTO t VALUES (2, 'x')", "INSERT INTO u VALUES (2, 'x')")
    told = what_is_told(job)
    assert told is not None
    assert f"transforms.{table} fails on a row" in told
    assert "Let the expression accept such values (TRY_CAST, CASE), or correct the row in the source." in told
    assert START_OVER not in told
    if policy == "park":
        assert read_history(tmp_path / "out", mysql_database.name, "u")["id"].to_pylist() == [1, 2]
    run_command(told, job, tidemark)
    for _ in range(2):
        assert what_is_told(job, f"transforms.{table}=SELECT id, TRY_CAST(a AS INTEGER) AS a FROM input") is None
        assert folded(tmp_path, mysql_database, "id", "a") == [(1, 5), (2, None)]
        assert sorted(read_history(tmp_path / "out", mysql_database.name, "u")["id"].to_pylist()) == [1, 2]


def test_what_does_not_fit_is_refused_with_its_line(
    mysql_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,  # noqa: F811
) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT)", "CREATE TABLE u (id INT PRIMARY KEY, a INT)")
    t, u = f"{mysql_database.name}.t", f"{mysql_database.name}.u"
    job = write_job(
        tmp_path,
        source=source_of(mysql_database, columns={t: {"exclude": ["id"]}, u: {"mask": {"id": "sha256", "x": "null"}}}),
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    lines = job.read_text().splitlines()
    ended = tidemark("validate", job, "--connect")
    line = lines.index("      exclude:") + 1
    assert ended.code == 3
    assert f'job.yaml:{line}: source.columns."{t}".exclude: source.columns excludes id of {t}' in ended.last_line
    line = lines.index("      mask:") + 1
    assert f'job.yaml:{line}: source.columns."{u}".mask: masks id of {u}, which is in its key' in ended.last_line
    for sql, why in [
        ("SELECT a FROM input", "drops or changes id"),
        ("SELECT *, a || b AS x FROM input", "names b, but the columns are id, a"),
    ]:
        ended = tidemark("validate", job, "--connect", "--set", "source.columns={}", "--set", f"transforms.{t}={sql}")
        assert ended.code == 3
        assert f'--set transforms."{t}": {why}' in ended.last_line
    gone = f"transforms.{mysql_database.name}.gone=SELECT * FROM input"
    ended = tidemark("validate", job, "--connect", "--set", "source.columns={}", "--set", gone)
    assert f"transforms names {mysql_database.name}.gone, which source.tables does not select" in ended.last_line


def test_plan_and_validate_show_what_becomes_of_columns(
    mysql_database: Database,
    tmp_path: Path,
    tidemark: CommandLine,  # noqa: F811
) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    table = f"{mysql_database.name}.t"
    job = write_job(
        tmp_path,
        source=source_of(mysql_database, columns={table: {"exclude": ["b"], "mask": {"a": "sha256"}}}),
        transforms={table: "SELECT * FROM input"},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    line = f"{table}: without b; a masked by sha256; transformed by SELECT * FROM input"
    ended = tidemark("plan", job)
    assert (ended.code, f"columns   {line}" in ended.out) == (0, True)
    ended = tidemark("validate", job)
    assert (ended.code, f"columns: {line}" in ended.out) == (0, True)
    assert "warning: source.columns: " in ended.out


def test_a_transform_of_values_that_the_log_may_leave_out(postgres18_database: Database, tmp_path: Path) -> None:
    source = postgres18_database
    source.execute("CREATE TABLE t (id INT PRIMARY KEY, body TEXT, n INT)", "INSERT INTO t VALUES (1, 'x', 2)")
    job = write_job(
        tmp_path,
        source=source_of(source),
        transforms={"public.t": "SELECT id, body, n + 1 AS n FROM input"},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    reading = "transforms.public.t=SELECT *, length(body) AS size FROM input"
    with pytest.raises(SourceNotUsableError, match=r"computes from body, .* REPLICA IDENTITY FULL; or only pass"):
        run_epochs(job, reading)
    run_epochs(job)
    other = tmp_path / "other"
    other.mkdir()
    source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    settings = (reading, f"checkpoint={other}", f"sink.path={other}/out", f"source.slot={source.name}_2")
    run_epochs(job, *settings)
    source.execute(
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        "UPDATE t SET body = repeat('x', 10000)",
        "UPDATE t SET n = n + 1",
        "DELETE FROM t",
    )
    run_epochs(job, *settings)
    assert read_history(other / "out", "public", "t")["size"].to_pylist() == [1, 10000, 10000, 10000]
    source.execute(
        "INSERT INTO t VALUES (1, repeat('y', 10000), 3)",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "UPDATE t SET n = n + 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
    )
    with pytest.raises(SourceNotUsableError, match="the replica identity of the table is no longer FULL") as caught:
        run_epochs(job, *settings)
    assert caught.value.table == TableId("public", "t"), "the others can go on"


def test_a_column_whose_type_is_refused_is_left_out(postgres18_database: Database, tmp_path: Path) -> None:
    source = postgres18_database
    source.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, what REGCLASS, n INT)", "INSERT INTO t VALUES (1, 'pg_class', 2)"
    )
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
    with pytest.raises(TidemarkError, match=r"source.columns: \{public.t: \{exclude: \[what\]\}\}"):
        run_epochs(job)
    settings = ("source.columns={public.t: {exclude: [what]}}",)
    run_epochs(job, *settings)
    source.execute("UPDATE t SET n = 3", "UPDATE t SET id = 2, what = 'pg_type'", "DELETE FROM t")
    run_epochs(job, *settings)
    history = read_history(tmp_path / "out", "public", "t")
    assert history.schema.names[:2] == ["id", "n"]
    assert history["_change_type"].to_pylist() == ["insert", "update_postimage", "delete", "insert", "delete"]


def test_one_table_as_a_stream(mysql_database: Database, tmp_path: Path) -> None:
    """Repeats for the schema alone what tests/integration/test_stream_source.py does with Spark."""
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)")
    table = f"{mysql_database.name}.t"
    options = {"url": mysql_database.server.url, "table": table, "checkpoint": str(tmp_path / "c")}
    options |= {"source.columns": f"{{{table}: {{mask: {{a: sha256}}}}}}"}
    options |= {"transforms": f'{{{table}: "SELECT id, a, b * 0.5 AS half FROM input"}}'}
    schema = table_schema(options)
    assert [(c.name, c.arrow_type) for c in schema.columns] == [
        ("id", "int32"),
        ("a", "string"),
        ("half", "decimal(12,1)"),
    ]
    with pytest.raises(JobFileError, match="must read FROM input"):
        table_schema(options | {"transforms": f"{{{table}: SELECT 1 AS id}}"})
