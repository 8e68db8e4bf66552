"""Rows whose key changes during the first snapshot while the log leaves out their long values: where no split has them,
they are re-read (docs/adr/0016)."""

import hashlib
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database, fresh_database
from tests.support.sink_state import SinkCase, sorted_rows
from tidemark.conf.load import load_job_file
from tidemark.jobs.epoch.planner import Planner
from tidemark.readers.log import key_rereads as split_key_moves
from tidemark.readers.postgres.snapshot.key_reader import KeyReader
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.sinks.files.sink import FilesSink
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, SourceNotUsableError
from tidemark.state.failpoints import FailpointError
from tidemark.state.remedies import RESTORE_CHECKPOINT
from tidemark.state.table import TableSchema

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(61), pytest.mark.servers_in_turn("postgres_source_server")]

BIG = "(SELECT string_agg(md5((j + {0})::text), '') FROM generate_series(1, 100) AS j)"
MOVES = (
    "UPDATE t SET id = 135, n = 1 WHERE id = 35",
    # on and on, in one transaction and in several, and out of the split again
    "UPDATE t SET id = 102 WHERE id = 34; UPDATE t SET n = 2 WHERE id = 102; UPDATE t SET id = 103 WHERE id = 102",
    "UPDATE t SET id = 104 WHERE id = 103",
    "UPDATE t SET id = 105 WHERE id = 33",
    "UPDATE t SET id = -33 WHERE id = 105",
    # gone, and another row under the key
    "UPDATE t SET id = 106 WHERE id = 32; DELETE FROM t WHERE id = 106; UPDATE t SET id = 106 WHERE id = 31",
    "DELETE FROM t WHERE id = 40; UPDATE t SET id = 40 WHERE id = 36",
    "UPDATE t SET id = 107 WHERE id = 30; UPDATE t SET body = 'short' WHERE id = 107",
    # two rows that change places
    "UPDATE t SET id = 108 WHERE id = 29; UPDATE t SET id = 109 WHERE id = 28; UPDATE t SET id = 110 WHERE id = 108; "
    "UPDATE t SET id = 108 WHERE id = 109; UPDATE t SET id = 109 WHERE id = 110",
)
"""Into the split that is read first: that of the greatest key and what comes after it."""
LATER = (
    "UPDATE t SET n = n + 1 WHERE id IN (135, 104, -33, 40)",
    "UPDATE t SET id = 150 WHERE id = 135",
    "UPDATE t SET id = -4 WHERE id = 104; UPDATE t SET n = 7 WHERE id = -4",
)
CRASHES = ("rereads.before_publish", "rereads.after_publish", "log.before_rereads", "log.before_report")


def make_table(database: Database) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, body text)",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, 0, {BIG.format('i * 1000')} FROM generate_series(1, 40) AS i",
        "ANALYZE t",
    )


def into_files(folder: Path, database: Database, **changes: Any) -> tuple[Path, SinkCase]:
    settings = {
        "source": source_of(database),
        "snapshot": {"split_rows": 10, "parallelism": 1},
        "sink": {"type": "files", "path": str(folder / "out")},
    }
    job = write_job(folder, **(settings | changes))
    return job, SinkCase("parquet", FilesSink.of(str(folder / "out"), "parquet"), folder / "out")


def into_mirror(folder: Path, source: Database, target: Database) -> tuple[Path, SinkCase]:
    job, files = into_files(folder, source, sink={"type": "mirror", "url": target.url, "table": "{schema}_{table}"})
    return job, SinkCase("postgres", files.sink, target)


def checkpoint_of(job: Path) -> Checkpoint:
    return Checkpoint.at(load_job_file(job).checkpoint)


def schema_of(job: Path) -> TableSchema:
    state = checkpoint_of(job).job_state()
    assert state is not None
    return state.outputs[0]


@pytest.mark.parametrize("sink", ["files", "mirror"])
def test_rows_are_complete_through_crashes(
    postgres_source_database: Database,
    postgres_database: Database,
    sink: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = postgres_source_database
    make_table(source)
    if sink == "files":
        job, copy = into_files(tmp_path, source)
    else:
        job, copy = into_mirror(tmp_path, source, postgres_database)
    assert run_epochs(job, at_most=1) == ["snapshot"]
    source.execute(*MOVES)
    armed = tmp_path / "failpoints"
    armed.mkdir()
    for name in CRASHES:
        (armed / name).write_text("raise")
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    for change in (*LATER, "SELECT"):
        with pytest.raises(FailpointError):
            run_epochs(job)
        source.execute(change)
    assert {path.name for path in armed.iterdir()}.isdisjoint(CRASHES)
    run_epochs(job)
    schema = schema_of(job)
    assert copy.rows(schema) == sorted_rows(schema, source.query("SELECT * FROM t"))
    readings = checkpoint_of(job).key_rereads_before(1000)
    assert len([key for reading in readings for key in reading.keys]) >= len(MOVES)
    source.execute("UPDATE t SET n = n + 100", "UPDATE t SET id = id + 1000")
    assert run_epochs(job) == ["stream"]
    assert copy.rows(schema) == sorted_rows(schema, source.query("SELECT * FROM t"))
    assert not checkpoint_of(job).store.list("rereads")
    if sink == "files":
        changes = copy.changes(schema)
        assert len({(c["_commit_version"], c["_seq"]) for c in changes if not c["_is_snapshot"]}) > 40
        assert {c["_change_type"] for c in changes if c["_is_snapshot"] and c["_txn_id"]} == {"insert"}


def test_readings_go_on_when_their_connection_is_lost(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each one is under another snapshot, and rows move between them."""
    source, read_again, calls = postgres_database, KeyReader.read_again, itertools.count(1)

    def read_and_lose(reader: KeyReader, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        read = read_again(reader, schema, rows)
        idle = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        assert source.query(f"SELECT pg_terminate_backend(pid, 10000) FROM ({idle}) AS i") == [(True,)]
        if (call := next(calls)) <= len(LATER):
            source.execute(LATER[call - 1])
        return read

    monkeypatch.setattr(KeyReader, "read_again", read_and_lose)
    monkeypatch.setattr(split_key_moves, "MAX_KEYS_PER_READ", 1)
    make_table(source)
    job, copy = into_files(tmp_path, source)
    run_epochs(job, at_most=1)
    source.execute(*MOVES)
    run_epochs(job)
    readings = checkpoint_of(job).key_rereads_before(1000)
    assert len({reading.high.snapshot for reading in readings}) > len(LATER)
    run_epochs(job)
    schema = schema_of(job)
    assert copy.rows(schema) == sorted_rows(schema, source.query("SELECT * FROM t"))


def test_keys_of_many_columns_and_types(postgres18_database: Database, tmp_path: Path) -> None:
    """The job has a snapshot.where, which never limits changes, and a mask."""
    source = postgres18_database
    source.execute(
        'CREATE TABLE t (lang varchar(40) COLLATE "und-x-icu", at timestamptz, code bytea, exact numeric, day date, '
        "ratio float8, fixed char(9), id uuid, n int NOT NULL, body text, secret text, "
        "PRIMARY KEY (lang, at, code, exact, day, ratio, fixed, id))",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER secret SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT chr(64 + i) || E'é\\'\\\\', "
        "'2024-02-29 12:00:00.000001+00'::timestamptz + i * interval '1 day', "
        f"'\\x005c27', 1.10, '2024-02-29', 0.1, 'x', gen_random_uuid(), i % 2, {BIG.format('i')}, {BIG.format('9 * i')} "
        "FROM generate_series(1, 25) AS i",
        "ANALYZE t",
    )
    mask = {"public.t": {"mask": {"secret": "sha256"}}}
    job, copy = into_files(
        tmp_path,
        source,
        source=source_of(source, columns=mask),
        snapshot={"split_rows": 5, "parallelism": 1, "where": {"public.t": "n = 0"}},
    )
    run_epochs(job, at_most=1)
    source.execute("UPDATE t SET lang = 'Z' || lang, exact = 1.100 WHERE lang < 'E'")
    run_epochs(job)
    columns = "lang, at, code, exact::text, day, ratio, fixed, id, n, body, secret"
    expected = source.query(f"SELECT {columns} FROM t WHERE n = 0 OR lang LIKE 'Z_é%'")
    hidden = [(*row[:-1], hashlib.sha256(row[-1].encode()).hexdigest()) for row in expected]
    schema = schema_of(job)
    assert len(expected) > 12
    assert copy.rows(schema) == sorted_rows(schema, hidden)


def test_more_of_them_than_can_be_kept_stop_the_job(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_key_moves, "MAX_REREAD_KEYS", 2)
    make_table(postgres_database)
    job, _ = into_files(tmp_path, postgres_database)
    run_epochs(job, at_most=1)
    postgres_database.execute(*MOVES)
    with pytest.raises(SourceNotUsableError, match=r"The keys of more than 2 rows .* changed") as caught:
        run_epochs(job)
    assert "REPLICA IDENTITY FULL" in caught.value.remedy


def test_a_table_with_more_of_them_is_read_again(
    postgres_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log keeps these changes: no later run would get past them."""
    monkeypatch.setattr(split_key_moves, "MAX_REREAD_KEYS", 2)
    make_table(postgres_database)
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    (job, copy), notes = into_files(tmp_path, postgres_database, sink=sink), Notes()
    run_epochs(job, at_most=1)
    postgres_database.execute(*MOVES)
    run_epochs(job, notes=notes)
    assert ["The keys of more than 2 rows" in facts["text"] for event, facts in notes.found if event == "left"] == [
        True
    ]
    postgres_database.execute("UPDATE t SET id = id + 1000")
    run_epochs(job)
    schema = schema_of(job)
    assert copy.rows(schema) == sorted_rows(schema, postgres_database.query("SELECT * FROM t"))


def test_a_table_is_read_again_if_rows_read_again_contain_its_truncation(
    postgres_database: Database, tmp_path: Path
) -> None:
    make_table(postgres_database)
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": "evolve"}
    (job, copy), notes = into_files(tmp_path, postgres_database, sink=sink), Notes()
    run_epochs(job, at_most=1)
    postgres_database.execute("UPDATE t SET id = 135 WHERE id = 35")
    assert run_epochs(job, at_most=1) == ["snapshot"]
    postgres_database.execute("TRUNCATE t", "INSERT INTO t VALUES (135, 9, 'there again')")
    run_epochs(job, notes=notes)
    assert ["t was truncated" in facts["text"] for event, facts in notes.found if event == "left"] == [True]
    schema = schema_of(job)
    assert copy.rows(schema) == sorted_rows(schema, postgres_database.query("SELECT * FROM t"))


@pytest.mark.parametrize(
    ("key", "low", "moved", "equal", "columns"),
    [
        ("numeric", "35", "135.0", "135.00", "id"),
        ("interval", "interval '35 mon'", "interval '135 mon'", "interval '4050 d'", "id, flags"),
    ],
)
def test_equal_keys_that_look_different_are_one_key(
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    low: str,
    moved: str,
    equal: str,
    columns: str,
) -> None:
    """The copy takes them for one, too; also beside a column without a hash function. The key gets another form and its own
    again before it is re-read: both changes come in a later epoch, and the re-read contains them."""
    source, next_epoch, read_again, done = postgres_database, Planner.next_epoch, KeyReader.read_again, list[str]()
    source.execute(
        f"CREATE TABLE t (id {key}, body text, flags bit(2) DEFAULT B'01', PRIMARY KEY ({columns}))",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i * {low} / 35, {BIG.format('i * 1000')} FROM generate_series(1, 40) AS i",
        "ANALYZE t",
    )

    def plan(self: Planner, committed: int, **settings: Any) -> int:
        if committed == 1 and not done:  # the last split is read
            done.append("moved")
            source.execute(f"UPDATE t SET id = {moved} WHERE id = {low}")
        return next_epoch(self, committed, **settings)

    def read(self: KeyReader, schema: TableSchema, rows: pa.RecordBatch) -> SplitRead:
        if done == ["moved"]:
            done.append("changed")
            source.execute(*(f"UPDATE t SET id = {form}, body = 'new' WHERE id = {moved}" for form in (equal, moved)))
        return read_again(self, schema, rows)

    monkeypatch.setattr(Planner, "next_epoch", plan)
    monkeypatch.setattr(KeyReader, "read_again", read)
    with fresh_database(source.server) as target:
        sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
        snapshot = {"split_rows": 5, "parallelism": 1}
        run_epochs(write_job(tmp_path, source=source_of(source), snapshot=snapshot, sink=sink))
        assert done == ["moved", "changed"]
        rows = "SELECT id::text, md5(body) FROM {} ORDER BY id"
        assert target.query(rows.format("copy_t")) == source.query(rows.format("t"))


def test_a_lost_file_of_them_stops_the_job(postgres_database: Database, tmp_path: Path) -> None:
    """Without it the log would bring changes that the rows contain, and rows would lack their long values."""
    make_table(postgres_database)
    job, copy = into_files(tmp_path, postgres_database)
    run_epochs(job, at_most=1)
    postgres_database.execute(*MOVES)
    run_epochs(job, at_most=1)
    store = checkpoint_of(job).store
    (name,) = store.list("rereads")
    data = bytes(store.read(name) or b"")
    store.delete(name)
    postgres_database.execute(*LATER)
    with pytest.raises(CheckpointError, match=f"has lost its file `{name}`") as caught:
        run_epochs(job)
    assert caught.value.remedy == RESTORE_CHECKPOINT
    store.create(name, data)
    run_epochs(job)
    run_epochs(job)
    schema = schema_of(job)
    assert copy.rows(schema) == sorted_rows(schema, postgres_database.query("SELECT * FROM t"))
