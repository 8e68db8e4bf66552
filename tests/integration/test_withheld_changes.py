"""The log is followed while a large table without a key is read by pages: the table's own changes wait for its rows."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import epochs
from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.keyless import CREATE, ROWS, assert_keyless_copied
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.enumerator import enumerator
from tidemark.jobs.commands.signal import resnapshot
from tidemark.jobs.tables import parking
from tidemark.state import failpoints
from tidemark.state.checkpoint.layout import Checkpoint, withheld_files
from tidemark.state.errors import WithheldLostError
from tidemark.state.failpoints import FailpointError
from tidemark.state.phase import Phase
from tidemark.state.plan import LogWork, PlanRecord, SnapshotWork, Staging
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

CHUNKS = ROWS // 1500
BeforeEach = Callable[[Callable[[PlanRecord], None]], None]


@pytest.fixture
def source(postgres18_database: Database) -> Database:
    postgres18_database.execute(
        *CREATE, "CREATE TABLE k (id int PRIMARY KEY, version int)", "INSERT INTO k VALUES (1, 0)"
    )
    return postgres18_database


@pytest.fixture
def before_each(monkeypatch: pytest.MonkeyPatch) -> BeforeEach:
    """Takes what is done once an epoch is planned, before it runs."""

    def install(act: Callable[[PlanRecord], None]) -> None:
        is_small = epochs.LocalEngine.is_small

        def acting(engine: epochs.LocalEngine, record: PlanRecord) -> bool:
            act(record)
            return is_small(engine, record)

        monkeypatch.setattr(epochs.LocalEngine, "is_small", acting)
        monkeypatch.setattr(enumerator, "MAX_SPLITS_PER_TASK", 1)

    return install


class LoadedError(Exception):
    """The first load is complete."""


class Writes:
    """Changes both tables before each epoch of the first load, and remembers what the epochs do."""

    def __init__(self, source: Database, *, only_inserts: bool = False) -> None:
        self._source, self._only_inserts = source, only_inserts
        self.number = 0
        self.stages: list[str] = []

    def __call__(self, record: PlanRecord) -> None:
        self.stages.append(stage_of(record))
        if record.plan.phase is Phase.STREAM:
            raise LoadedError
        self.number += 1
        self._source.execute(
            "UPDATE k SET version = version + 1",
            f"INSERT INTO t (uid, version, note) VALUES ({self.number}, 1, 'new'), (-1, 1, 'new')",
        )
        if not self._only_inserts:
            self._source.execute(
                f"UPDATE t SET version = version + 1 WHERE uid IN ({self.number * 37 % 4000}, -1)",
                f"DELETE FROM t WHERE uid = {self.number * 11 % 4000}",
            )


def stage_of(record: PlanRecord) -> str:
    """Returns `log` or `splits` and where the table without a key is."""
    work = record.plan.work
    if isinstance(work, LogWork) and work.backfills:
        return "backfill"
    kind = "splits" if isinstance(work, SnapshotWork) else "log"
    (cursor,) = [table.cursor for table in record.state.tables if table.table.name.endswith("t")] or [None]
    return f"{kind} {'staging' if isinstance(cursor, Staging) else cursor and cursor.kind}"


def load(job: Path, source: Database, notes: epochs.Notes | None = None) -> None:
    """Follows the log during the first load, and then to its end."""
    with pytest.raises(LoadedError):
        run_epochs(job, interval_seconds=0.01, notes=notes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writes, "__call__", lambda *_: None)
        run_epochs(job)
        source.execute("UPDATE k SET version = -1")  # files that are not needed go with the next plan
        run_epochs(job)


def version_of_t(record: PlanRecord) -> int | None:
    """Returns 1 when the table has joined, more once it came back, None while it is not in the job."""
    return next((table.schema_version for table in record.state.tables if table.table.name == "t"), None)


def job_of(source: Database, folder: Path, sink: dict[str, object] | None = None) -> Path:
    sink = sink or {"type": "files", "path": str(folder / "out"), "format": "jsonl"}
    return write_job(folder, source=source_of(source), sink=sink, snapshot={"split_rows": 1500, "parallelism": 1})


def withheld(folder: Path) -> list[str]:
    return [path.name for path in (folder / "checkpoint").glob("withheld/*")]


def test_other_tables_are_followed_meanwhile(source: Database, tmp_path: Path, before_each: BeforeEach) -> None:
    job, writes = job_of(source, tmp_path), Writes(source)
    seen_versions: list[int] = []

    def act(record: PlanRecord) -> None:
        writes(record)
        if stage_of(record) == "splits releasing" and not seen_versions:
            assert not list((tmp_path / "out").rglob(f"{source.schema}.t/**/*.jsonl"))
            seen_versions.append(sum(path.read_text().count("version") for path in (tmp_path / "out").rglob("*.jsonl")))
            assert withheld(tmp_path)

    before_each(act)
    load(job, source)
    assert writes.stages.count("log staging") + writes.stages.count("log releasing") > CHUNKS
    assert writes.stages.count("backfill") == 1
    assert seen_versions[0] > CHUNKS / 2, "changes of k are visible before the first row of t"
    assert_keyless_copied(tmp_path, source, "jsonl")
    assert not withheld(tmp_path)


@pytest.mark.parametrize(
    ("stage", "point"),
    [
        ("log staging", "withheld.before"),
        ("log staging", "withheld.after"),
        ("log releasing", "withheld.before"),
        ("log releasing", "withheld.after"),
        ("log releasing", "log.before_report"),
        ("log releasing", "sink.before_commit"),
        ("log releasing", "sink.after_commit"),
        ("log releasing", "planner.after_plan"),
        ("splits releasing", "sink.after_commit"),
        ("backfill", "log.before_report"),
        ("backfill", "sink.before_commit"),
        ("backfill", "sink.after_commit"),
        ("backfill", "planner.after_plan"),
    ],
)
def test_deaths(source: Database, tmp_path: Path, before_each: BeforeEach, monkeypatch, stage: str, point: str) -> None:
    job, writes, armed = job_of(source, tmp_path), Writes(source), tmp_path / "armed"
    armed.mkdir()
    monkeypatch.setattr(failpoints, "_FOLDER", str(armed))
    seen = 0

    def act(record: PlanRecord) -> None:
        nonlocal seen
        writes(record)
        seen += stage_of(record) == stage
        if seen == (1 if stage == "backfill" else 2):
            seen += 1
            (armed / point).write_text("raise")

    before_each(act)
    with pytest.raises(FailpointError):
        run_epochs(job, interval_seconds=0.01)
    load(job, source)
    assert_keyless_copied(tmp_path, source, "jsonl")
    assert not withheld(tmp_path)


def test_a_truncate_meanwhile_comes_after_the_rows(
    source: Database,
    postgres_database: Database,
    tmp_path: Path,
    before_each,
) -> None:
    """TRUNCATE waits while chunks are staged, but not while they are released."""
    sink = {"type": "mirror", "on_schema_change": "evolve", "url": postgres_database.url, "keyless": "append"}
    job, writes = job_of(source, tmp_path, sink), Writes(source, only_inserts=True)

    def act(record: PlanRecord) -> None:
        if writes.stages.count("splits releasing") == 2 and stage_of(record) == "log releasing":
            source.execute("TRUNCATE t")
            writes.stages.append("truncated")
        writes(record)

    before_each(act)
    load(job, source)
    assert writes.stages.count("truncated") >= 1
    found = "SELECT format('%I.%I', table_schema, table_name) FROM information_schema.columns WHERE column_name = 'uid'"
    ((copy,),) = postgres_database.query(found)
    rows = "SELECT uid, version, note FROM {}"
    copied = Counter(postgres_database.query(rows.format(copy)))
    assert copied == Counter(source.query(rows.format("t")))
    assert sum(copied.values()) < ROWS


@pytest.mark.parametrize("stage", ["log releasing", "backfill"])
def test_an_alter_meanwhile(
    source: Database, postgres_database: Database, tmp_path: Path, before_each: BeforeEach, stage: str
) -> None:
    """ALTER TABLE waits while chunks are staged, but not later. What was withheld has the columns of before."""
    sink = {"type": "mirror", "on_schema_change": "evolve", "url": postgres_database.url, "keyless": "append"}
    job, writes = job_of(source, tmp_path, sink), Writes(source, only_inserts=True)

    def act(record: PlanRecord) -> None:
        is_released = writes.stages.count("splits releasing") > 1
        if is_released and stage_of(record) == stage and "altered" not in writes.stages:
            writes.stages.append("altered")
            source.execute("ALTER TABLE t ADD COLUMN extra int DEFAULT 5", "INSERT INTO t VALUES (-2, 1, 'new', 6)")
        writes(record)

    before_each(act)
    load(job, source)
    assert "altered" in writes.stages
    rows = "SELECT uid, version, note, extra FROM {}"
    assert Counter(postgres_database.query(rows.format("public_t"))) == Counter(source.query(rows.format("t")))


def test_a_table_that_is_read_again_forgets_what_was_withheld(
    source: Database, tmp_path: Path, before_each: BeforeEach
) -> None:
    job, writes = job_of(source, tmp_path), Writes(source)
    is_asked = False

    def act(record: PlanRecord) -> None:
        nonlocal is_asked
        writes(record)
        if writes.stages.count("log releasing") == 2 and not is_asked:
            is_asked = True
            resnapshot(load_job_file(job), [TableName(source.schema, "t")])

    before_each(act)
    load(job, source)
    assert is_asked
    assert not withheld(tmp_path)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [Path.unlink, cut, flip])
def test_changes_that_are_lost_have_the_table_read_again(
    source: Database, tmp_path: Path, before_each: BeforeEach, damage: Callable[[Path], None]
) -> None:
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl", "on_schema_change": "evolve"}
    job, writes, notes = job_of(source, tmp_path, sink), Writes(source), epochs.Notes()

    def act(record: PlanRecord) -> None:
        writes(record)
        if writes.stages[-1] == "backfill" and writes.stages.count("backfill") == 1:
            damage(sorted((tmp_path / "checkpoint" / "withheld").iterdir())[1])

    before_each(act)
    load(job, source, notes=notes)
    (left,) = [facts["text"] for event, facts in notes.found if event == "left"]
    assert "has lost changes of" in left
    assert writes.stages.count("backfill") == 2
    assert not withheld(tmp_path)
    assert_keyless_copied(tmp_path, source, "jsonl")


def test_a_table_whose_changes_are_lost_each_time_does_not_come_back_for_ever(
    source: Database, tmp_path: Path, before_each: BeforeEach, monkeypatch
) -> None:
    monkeypatch.setattr(parking, "MAX_HEALS", 1)
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl", "on_schema_change": "evolve"}
    job = write_job(tmp_path, source=source_of(source), sink=sink, snapshot={"split_rows": 1500, "parallelism": 16})
    writes = Writes(source, only_inserts=True)

    def act(record: PlanRecord) -> None:
        if record.plan.phase is Phase.STREAM:
            return  # it is not back yet
        writes(record)
        if writes.stages[-1] == "backfill":
            assert version_of_t(record) in {1, 2}
            cut(max((tmp_path / "checkpoint" / "withheld").iterdir()))

    before_each(act)
    with pytest.raises(WithheldLostError, match=r"To read the table again: tidemark signal JOB.yaml resnapshot"):
        run_epochs(job, interval_seconds=0.01)


def test_lost_changes_stop_a_job_that_is_to_stop(source: Database, tmp_path: Path, before_each: BeforeEach) -> None:
    """The signal that the message names has the table read again."""
    job, writes = job_of(source, tmp_path), Writes(source)

    def act(record: PlanRecord) -> None:
        writes(record)
        if writes.stages[-1] == "backfill" and writes.stages.count("backfill") == 1:
            sorted((tmp_path / "checkpoint" / "withheld").iterdir())[1].unlink()

    before_each(act)
    with pytest.raises(WithheldLostError, match=r"To read the table again: tidemark signal JOB.yaml resnapshot"):
        run_epochs(job, interval_seconds=0.01)
    resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    load(job, source)
    assert_keyless_copied(tmp_path, source, "jsonl")


class TwoTables:
    """Adds table `u`, which is as `t`: the same epoch emits the changes of both. Dies there at a failpoint, and loses a file
    of `t`."""

    def __init__(self, source: Database, folder: Path, monkeypatch: pytest.MonkeyPatch, point: str) -> None:
        source.execute(*(statement.replace(" t ", " u ").replace("ANALYZE t", "ANALYZE u") for statement in CREATE))
        self._source, self._writes = source, Writes(source, only_inserts=True)
        self._store = Checkpoint.at(str(folder / "checkpoint")).store
        self._point, self._armed = point, folder / "armed"
        self._armed.mkdir()
        monkeypatch.setattr(failpoints, "_FOLDER", str(self._armed))

    def __call__(self, record: PlanRecord) -> None:
        if record.plan.phase is Phase.STREAM and version_of_t(record) != 2:
            return  # it is not back yet
        before = self._writes.number
        self._writes(record)
        if self._writes.number == before:
            return
        self._source.execute(f"INSERT INTO u VALUES ({self._writes.number}, 1, 'new'), (-1, 1, 'new')")
        if self._writes.stages.count("backfill") == 1:
            assert isinstance(record.plan.work, LogWork)
            assert [backfill.table.name for backfill in record.plan.work.backfills] == ["t", "u"]
            (self._armed / self._point).write_text("raise")

    def die(self, job: Path) -> None:
        with pytest.raises(FailpointError):
            run_epochs(job, interval_seconds=0.01)
        table = TableId(self._source.schema, "t")
        self._store.delete(withheld_files(self._store, table, after_epoch=0, before_epoch=999)[0])


@pytest.mark.parametrize("point", ["sink.before_commit", "sink.after_commit"])
@pytest.mark.parametrize("policy", ["evolve", "stop"])
def test_changes_that_are_lost_once_their_epoch_was_read(
    source: Database, tmp_path: Path, before_each: BeforeEach, monkeypatch, point: str, policy: str
) -> None:
    """Only their table is read again. The epoch is finished with the changes of the other one, which are written once."""
    tables = TwoTables(source, tmp_path, monkeypatch, point)
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": "jsonl", "on_schema_change": policy}
    job = write_job(tmp_path, source=source_of(source), sink=sink, snapshot={"split_rows": 1500, "parallelism": 16})
    before_each(tables)
    tables.die(job)
    notes = epochs.Notes()
    if policy == "stop":
        with pytest.raises(WithheldLostError, match=r"To read the table again: tidemark signal JOB.yaml resnapshot"):
            run_epochs(job)
        resnapshot(load_job_file(job), [TableName(source.schema, "t")])
    load(job, source, notes=notes)
    assert {facts["table"] for event, facts in notes.found if event == "joined"} == {f"{source.schema}.t"}
    assert_keyless_copied(tmp_path, source, "jsonl")
    assert_keyless_copied(tmp_path, source, "jsonl", "u")
    assert not withheld(tmp_path)
