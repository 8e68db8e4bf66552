"""`sink.on_schema_change: {drop_column: drop}`: a mirror drops the columns that the source drops, and no others."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.altered_tables import POINTS, create, folded, rows_of, told
from tests.support.ddl_kinds import kinds_of
from tests.support.ddl_matrix import assert_equal, change, numbered
from tests.support.ddl_matrix import create as create_kinds
from tests.support.epochs import Notes, die_at, run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.remedies import advice_of
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.jobs.commands.reconcile import reconcile
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.recovery.rollback import roll_back
from tidemark.jobs.sinks import make_sink
from tidemark.sinks.mirror.sink import MirrorSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError, JobHeldError, SchemaChangedError, TidemarkError

pytestmark = [
    pytest.mark.integration,
    pytest.mark.once_per_family,
    pytest.mark.servers_in_turn(always="postgres18_server"),
]
TABLE = (
    "CREATE TABLE t (id INT PRIMARY KEY, v INT NOT NULL, name VARCHAR(20))",
    "INSERT INTO t VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c'), (4, 4, 'd')",
    "CREATE TABLE second (id INT PRIMARY KEY, v INT, name VARCHAR(20))",
    "INSERT INTO second VALUES (1, 1, 'a'), (2, 2, 'b')",
)
BEFORE = (
    "UPDATE t SET name = 'older', v = 7 WHERE id = 2",
    "DELETE FROM t WHERE id = 3",
    "INSERT INTO t (id, name, v) VALUES (8, 'h', 9)",
)
DROPS = "ALTER TABLE t DROP COLUMN v"
AFTER = (
    "UPDATE t SET name = 'newer' WHERE id = 1",
    "DELETE FROM t WHERE id = 4",
    "INSERT INTO t (id, name) VALUES (9, 'i')",
)


def job_of(source: Database, target: Database, folder: Path, policy: str = "drop", /, **changes: Any) -> Path:
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}", "on_schema_change": {"drop_column": policy}}
    given = {"on_table_error": "park", **changes.pop("source", {})}
    return write_job(
        folder,
        source=source_of(source, **given),
        checkpoint=str(folder / "checkpoint"),
        snapshot={"split_rows": 3, "parallelism": 2},
        sink=sink | changes.pop("sink", {}),
        **changes,
    )


def copied(source: Database, target: Database, folder: Path, policy: str = "drop", /, **changes: Any) -> Path:
    create(source, TABLE)
    if source.kind == "postgres":  # a transform needs all values
        source.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    job = job_of(source, target, folder, policy, **changes)
    run_epochs(job)
    return job


def columns_of(database: Database, table: str = "copy_t") -> list[str]:
    query = (
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_schema = '{database.schema}' AND table_name = '{table}'"
    )
    return sorted(str(name) for (name,) in database.query(query))


def assert_same(source: Database, target: Database, table: str = "t", *own: str) -> None:
    """`own`: columns that only the copy has."""
    columns = columns_of(source, table)
    assert columns_of(target, f"copy_{table}") == sorted([*columns, *own])
    assert rows_of(target, f"copy_{table}", *columns) == rows_of(source, table, *columns)


def read_again(source: Database, job: Path, table: str = "t") -> None:
    resnapshot(load_job_file(job), [TableName(source.schema, table)])


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("point", [None, "sink.before_dropping", "sink.after_dropping", *POINTS])
def test_through_a_kill(
    any_source_database: Database, twin_database: Database, tmp_path: Path, point: str | None
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    job = copied(source, target, tmp_path)
    second = ("UPDATE second SET v = 7 WHERE id = 2", "ALTER TABLE second DROP COLUMN name, DROP COLUMN v")
    source.execute(*BEFORE, DROPS, *second, *AFTER, "INSERT INTO second VALUES (3)")
    if point is not None:
        die_at(job, point, notes=notes)
    run_epochs(job, notes=notes)
    assert set(told(notes)) == {"altered"}
    assert_same(source, target)
    assert_same(source, target, "second")
    reconcile(load_job_file(job), [], as_json=False, repair=False)


def test_the_event_tells(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    job = copied(source, target, tmp_path)
    source.execute(DROPS)
    run_epochs(job, notes=notes)
    (text,) = (facts["text"] for event, facts in notes.found if event == "altered")
    assert text == "It lost columns (v). The copy lost them, too."


@pytest.mark.parametrize("kind", ["INT", "VARCHAR(20)"])
@pytest.mark.parametrize("is_seen", [True, False], ids=["the job looks in between", "at once"])
def test_a_name_that_comes_back(
    is_seen: bool, kind: str, any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    for round_of in range(2):
        source.execute(
            *(BEFORE if round_of == 0 else ()), DROPS, f"UPDATE t SET name = 'between {round_of}' WHERE id = 1"
        )
        if is_seen:
            run_epochs(job)
            assert_same(source, target)
        source.execute(f"ALTER TABLE t ADD COLUMN v {kind}", "UPDATE t SET v = '70' WHERE id = 2")
        run_epochs(job)
        assert_same(source, target)
    source.execute("UPDATE t SET v = '71' WHERE id = 1")
    run_epochs(job)
    assert_same(source, target)


def test_a_name_that_comes_back_after_a_death(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The copy has lost the column, and the job does not know it. In MySQL the table looks as it was. It is read again."""
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    source.execute(*BEFORE, DROPS)
    die_at(job, "sink.after_dropping")
    source.execute("ALTER TABLE t ADD COLUMN v INT NOT NULL DEFAULT 5", "INSERT INTO second VALUES (3, 3, 'c')")
    run_epochs(job, notes=(notes := Notes()))
    assert rows_of(target, "copy_second", "id") == [(1,), (2,), (3,)]
    assert told(notes) == ["left", "joined"]
    assert_same(source, target)
    source.execute("UPDATE t SET v = 6 WHERE id = 1")
    run_epochs(job)
    assert_same(source, target)


def test_a_copy_that_lost_a_column_while_an_epoch_is_not_committed_parks_its_table(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """Somebody else has dropped it. The epoch is read again without the table."""
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    source.execute("UPDATE t SET v = 7", "UPDATE second SET v = 7")
    die_at(job, "sink.before_commit")
    target.execute("ALTER TABLE copy_t DROP COLUMN v")
    notes = Notes()
    run_epochs(job, notes=notes)
    assert [facts["table"] for event, facts in notes.found if event == "parked"] == [f"{source.schema}.t"]
    rows = "SELECT id, v, name FROM {} ORDER BY id"
    assert target.query(rows.format("copy_second")) == source.query(rows.format("second"))
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    run_epochs(job)
    assert target.query(rows.format("copy_t")) == source.query(rows.format("t"))


def test_columns_of_the_users_stay(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    """Also if the table is read again, and if the source had a column of that name that was not copied."""
    source, target = any_source_database, twin_database
    create(source, TABLE)
    source.execute("ALTER TABLE t ADD COLUMN secret INT")
    job = job_of(source, target, tmp_path, source={"columns": {f"{source.schema}.t": {"exclude": ["secret"]}}})
    run_epochs(job)
    target.execute("ALTER TABLE copy_t ADD COLUMN own INT", "ALTER TABLE copy_t ADD COLUMN secret INT")
    target.execute("UPDATE copy_t SET own = id, secret = id", "CREATE INDEX of_own ON copy_t (own)")
    source.execute(*BEFORE, DROPS, "ALTER TABLE t DROP COLUMN secret", *AFTER)
    job = job_of(source, target, tmp_path)
    run_epochs(job)
    assert_same(source, target, "t", "own", "secret")
    assert rows_of(target, "copy_t", "own", "secret")[0] == (1, 1)
    read_again(source, job)
    run_epochs(job)
    assert_same(source, target, "t", "own", "secret")


def test_what_the_copy_kept_before_stays(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target = any_source_database, twin_database
    copied(source, target, tmp_path, "evolve")
    source.execute(DROPS)
    run_epochs(job_of(source, target, tmp_path, "evolve"))
    job = job_of(source, target, tmp_path)
    source.execute("ALTER TABLE t DROP COLUMN name", "INSERT INTO t VALUES (30)")
    run_epochs(job)
    assert_same(source, target, "t", "v")
    read_again(source, job)
    run_epochs(job)
    assert_same(source, target, "t", "v")


def test_audit_columns_stay(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path, sink={"audit_columns": {"deleted": "gone", "synced_at": "at"}})
    source.execute(*BEFORE, DROPS, *AFTER)
    run_epochs(job)
    assert columns_of(target) == ["at", "gone", "id", "name"]
    found = [row for row in rows_of(target, "copy_t", "id", "name", "gone") if not row[2]]
    assert [row[:2] for row in found] == rows_of(source, "t", "id", "name")


@pytest.mark.parametrize("change", ["rename", "key", "another table"])
@pytest.mark.parametrize("point", [None, "sink.after_dropping", "tables.before_joined"])
def test_of_a_table_that_is_read_again(
    point: str | None, change: str, any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    job = copied(source, target, tmp_path)
    key = "DROP PRIMARY KEY" if source.kind != "postgres" else "DROP CONSTRAINT t_pkey"
    changes = {
        "rename": ("ALTER TABLE t RENAME COLUMN v TO w", "INSERT INTO t VALUES (20, 20, 't')"),
        "key": (f"ALTER TABLE t {key}, DROP COLUMN name, ADD PRIMARY KEY (id, v)", "INSERT INTO t VALUES (1, 20)"),
        "another table": ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, w INT)", "INSERT INTO t VALUES (7, 7)"),
    }
    source.execute(*BEFORE, *changes[change])
    if point is not None:
        die_at(job, point, notes=notes)
    run_epochs(job, notes=notes)
    assert "joined" in told(notes)
    assert_same(source, target)


def test_a_column_that_is_excluded_was_not_dropped(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target = any_source_database, twin_database
    copied(source, target, tmp_path)
    columns = {f"{source.schema}.t": {"exclude": ["v"], "mask": {"name": "redact"}}}
    job = job_of(source, target, tmp_path, source={"columns": columns})
    read_again(source, job)
    run_epochs(job)
    assert columns_of(target) == ["id", "name", "v"]


def test_a_masked_column(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    """The job file names it, so the table is read again with another one."""
    source, target = any_source_database, twin_database
    copied(source, target, tmp_path, source={"columns": {f"{source.schema}.t": {"mask": {"name": "redact"}}}})
    source.execute("UPDATE t SET v = 8", "ALTER TABLE t DROP COLUMN name", "INSERT INTO t VALUES (20, 20)")
    job = job_of(source, target, tmp_path)
    read_again(source, job)
    run_epochs(job)
    assert_same(source, target)


def test_a_column_beside_masked_ones(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    source, target, notes = any_source_database, twin_database, Notes()
    columns = {f"{source.schema}.t": {"mask": {"name": "redact"}}}
    job = copied(source, target, tmp_path, source={"columns": columns})
    source.execute(*BEFORE, DROPS, *AFTER)
    run_epochs(job, notes=notes)
    assert told(notes) == ["altered"]
    assert columns_of(target) == ["id", "name"]
    assert rows_of(target, "copy_t", "id") == rows_of(source, "t", "id")


def test_what_a_transform_makes_stays(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    """Whether it came from the dropped column is not known."""
    source, target = any_source_database, twin_database
    transforms = {f"{source.schema}.t": "SELECT *, name || '!' AS loud FROM input"}
    job = copied(source, target, tmp_path, transforms=transforms)
    source.execute(*BEFORE, DROPS, *AFTER)
    run_epochs(job)
    assert columns_of(target) == ["id", "loud", "name"]
    assert rows_of(target, "copy_t", "id", "name") == rows_of(source, "t", "id", "name")
    source.execute("ALTER TABLE t DROP COLUMN name")
    job = job_of(source, target, tmp_path)
    read_again(source, job)
    run_epochs(job)
    assert_same(source, target, "t", "loud")


NEEDING = {
    "index": ("CREATE INDEX needs ON copy_t (v)", "DROP INDEX needs"),
    "unique index": ("CREATE UNIQUE INDEX needs ON copy_t (name, v)", "DROP INDEX needs"),
    "view": ("CREATE VIEW needs AS SELECT id, v + 1 AS more FROM copy_t", "DROP VIEW needs"),
    "generated column": (
        "ALTER TABLE copy_t ADD COLUMN needs INT GENERATED ALWAYS AS (v + 1) STORED",
        "ALTER TABLE copy_t DROP COLUMN needs",
    ),
    "trigger": (
        "CREATE TRIGGER needs BEFORE INSERT ON copy_t FOR EACH ROW SET NEW.name = CONCAT(NEW.name, NEW.v - NEW.v)",
        "DROP TRIGGER needs",
    ),
    "constraint": (
        "ALTER TABLE copy_t ADD CONSTRAINT needs CHECK (v < id + 1000)",
        "ALTER TABLE copy_t DROP CONSTRAINT needs",
    ),
}


@pytest.mark.servers_in_turn
@pytest.mark.parametrize("what", NEEDING)
def test_what_needs_the_column_parks_the_table_until_it_is_dropped(
    what: str, any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """The copy, its indexes and views stay as they are, and the other tables go on."""
    source, target = any_source_database, twin_database
    if what == "trigger" and target.kind == "postgres":
        pytest.skip("PostgreSQL's triggers are functions, whose text is not known")
    job = copied(source, target, tmp_path)
    make, drop = NEEDING[what]
    target.execute(make)
    before = rows_of(target, "copy_t", "id", "v", "name")
    source.execute(*BEFORE, DROPS, *AFTER, "ALTER TABLE second DROP COLUMN v", "INSERT INTO second VALUES (3, 'c')")
    for _ in range(2):
        told_now = advice_of(job)
        assert "Drop what needs the column, or change it so that it does without, and run the job again." in told_now
        assert "needs" in told_now
        assert rows_of(target, "copy_t", "id", "v", "name") == before
        assert_same(source, target, "second")
    on_table = " ON copy_t" if what.endswith("index") and target.kind != "postgres" else ""
    target.execute(drop + on_table)
    run_epochs(job)
    assert_same(source, target)


def test_or_the_column_is_kept(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    target.execute("CREATE INDEX needs ON copy_t (v)")
    source.execute(*BEFORE, DROPS, *AFTER)
    remedy = "Or keep the column: write drop_column: evolve in sink.on_schema_change."
    assert remedy in advice_of(job)
    run_epochs(job_of(source, target, tmp_path, "evolve"))
    assert_same(source, target, "t", "v")


def test_a_foreign_key_on_the_column(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    """A mirror takes no copy with foreign keys: the table is parked for that, and keeps the column."""
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    target.execute(
        "CREATE TABLE parent (v INT PRIMARY KEY)",
        "INSERT INTO parent SELECT DISTINCT v FROM copy_t",
        "ALTER TABLE copy_t ADD CONSTRAINT needs FOREIGN KEY (v) REFERENCES parent (v)",
    )
    source.execute(DROPS, "INSERT INTO second VALUES (3, 3, 'c')")
    assert "needs" in advice_of(job)
    assert columns_of(target) == ["id", "name", "v"]
    assert_same(source, target, "second")


def test_a_late_driver_drops_nothing(any_source_database: Database, twin_database: Database, tmp_path: Path) -> None:
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    sink = make_sink(load_job_file(job))
    assert state is not None
    assert isinstance(sink, MirrorSink)
    late, number = Checkpoint.at(load_job_file(job).checkpoint).driver, state.job_uuid
    run_epochs(job)  # another driver
    schema = next(schema for schema in state.schemas if schema.table.name == "t")
    with pytest.raises(JobHeldError):
        sink.drop_columns(JobIdentity(number, state.job_name, late), schema, ["v"])
    assert_same(source, target)


def test_a_late_writer_is_ended_before_the_column_goes(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """It has written a row with the column and not committed, when the next driver's start drops the column."""
    source, target = any_source_database, twin_database
    if target.kind == "mariadb":
        pytest.skip("MariaDB does not tell whose sessions are whose: the drop waits for the writer")
    job = copied(source, target, tmp_path)
    state = Checkpoint.at(load_job_file(job).checkpoint).job_state()
    sink = make_sink(load_job_file(job))
    assert state is not None
    assert isinstance(sink, MirrorSink)
    identity = JobIdentity(state.job_uuid, state.job_name, Checkpoint.at(load_job_file(job).checkpoint).driver)
    late = sink.connect(writer_of=identity)
    assert late.begin(identity, 99, "late") is None
    late.execute(f"INSERT INTO {target.schema}.copy_t (id, v, name) VALUES (99, 99, 'late')")
    source.execute(*BEFORE, DROPS, *AFTER)
    run_epochs(job)
    with pytest.raises(TidemarkError):
        late.commit(1, None)
    late.close()
    assert_same(source, target)


def test_a_job_is_not_rolled_back_to_before_the_drop(
    any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    """After a death between the drop and its record, the log is read again without the column, or the rollback is refused."""
    source, target = any_source_database, twin_database
    job = copied(source, target, tmp_path)
    loaded = load_job_file(job)
    source.execute("UPDATE t SET v = 50 WHERE id = 1")
    run_epochs(job)
    source.execute("UPDATE t SET v = 60 WHERE id = 1")
    run_epochs(job)
    epoch = Checkpoint.at(loaded.checkpoint).committed_epoch() - 1
    source.execute(*BEFORE, DROPS, *AFTER)
    die_at(job, "sink.after_dropping")
    if source.kind == "postgres":
        with pytest.raises(SchemaChangedError, match=r"v of public\.t is another column now, or gone"):
            roll_back(loaded, epoch, standby=True)
    else:
        roll_back(loaded, epoch, standby=True)
    run_epochs(job)
    assert_same(source, target)
    with pytest.raises(CheckpointError, match="has got or lost columns after epoch"):
        roll_back(loaded, epoch, standby=True)
    run_epochs(job)
    assert_same(source, target)


@pytest.mark.parametrize("part", range(2))
def test_copies_have_the_columns_of_the_source_after_each_kind_of_ddl(
    part: int, any_source_database: Database, twin_database: Database, tmp_path: Path
) -> None:
    source, target = any_source_database, twin_database
    kinds = kinds_of(source.kind)[part::2]
    create_kinds(source, kinds)
    tables = {"tables": [f"{source.schema}.k*"]}
    job = job_of(source, target, tmp_path, source=tables)
    run_epochs(job)
    change(source, kinds)
    run_epochs(job)
    run_epochs(job)  # tables that were created join at a start
    if source.kind == target.kind:
        assert_equal(source, target, kinds)
    for table, kind in numbered(kinds):
        if not (kind.gone or kind.parked):
            assert set(columns_of(target, f"copy_{table}")) <= set(columns_of(source, table)), kind.what


def test_new_files_lack_the_column(any_source_database: Database, tmp_path: Path) -> None:
    source = any_source_database
    create(source, TABLE)
    sink = {"type": "files", "path": str(tmp_path / "out"), "on_schema_change": {"drop_column": "drop"}}
    job = write_job(tmp_path, source=source_of(source), checkpoint=str(tmp_path / "checkpoint"), sink=sink)
    run_epochs(job)
    source.execute(*BEFORE, DROPS, *AFTER)
    run_epochs(job, notes=(notes := Notes()))
    (text,) = (facts["text"] for event, facts in notes.found if event == "altered")
    assert text == "It lost columns (v). The copy keeps them."
    assert folded(tmp_path, source, "id", "name") == rows_of(source, "t", "id", "name")


@pytest.fixture(params=[("mysql", "postgres"), ("postgres", "mysql"), ("mysql", "mariadb")], ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[Database, Database]:
    """A source and a target of different kinds."""
    source, target = (request.getfixturevalue(f"{kind}_database") for kind in request.param)
    return source, target


@pytest.mark.parametrize("point", [None, "sink.after_dropping"])
def test_between_servers_of_different_kinds(pair: tuple[Database, Database], tmp_path: Path, point: str | None) -> None:
    (source, target), notes = pair, Notes()
    job = copied(source, target, tmp_path)
    source.execute(
        *BEFORE, DROPS, *AFTER, "UPDATE second SET v = 7", "ALTER TABLE second DROP COLUMN name, DROP COLUMN v"
    )
    if point is not None:
        die_at(job, point, notes=notes)
    run_epochs(job, notes=notes)
    assert set(told(notes)) == {"altered"}
    assert_same(source, target)
    assert_same(source, target, "second")
    reconcile(load_job_file(job), [], as_json=False, repair=False)
    source.execute("ALTER TABLE t ADD COLUMN v VARCHAR(20)", "UPDATE t SET v = 'b' WHERE id = 2")
    run_epochs(job)
    assert_same(source, target)


def test_what_needs_the_column_between_servers_of_different_kinds(
    pair: tuple[Database, Database], tmp_path: Path
) -> None:
    source, target = pair
    job = copied(source, target, tmp_path)
    target.execute("CREATE INDEX needs ON copy_t (v)")
    source.execute(*BEFORE, DROPS, *AFTER, "INSERT INTO second VALUES (3, 3, 'c')")
    assert "Drop what needs the column" in advice_of(job)
    assert_same(source, target, "second")
    target.execute(f"DROP INDEX needs{'' if target.kind == 'postgres' else ' ON copy_t'}")
    run_epochs(job)
    assert_same(source, target)


def test_a_name_that_comes_back_after_a_death_between_servers_of_different_kinds(
    pair: tuple[Database, Database], tmp_path: Path
) -> None:
    source, target = pair
    job = copied(source, target, tmp_path)
    source.execute(*BEFORE, DROPS)
    die_at(job, "sink.after_dropping")
    source.execute("ALTER TABLE t ADD COLUMN v INT NOT NULL DEFAULT 5", "UPDATE t SET v = 6 WHERE id = 1")
    run_epochs(job)
    assert_same(source, target)
