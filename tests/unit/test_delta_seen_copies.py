"""As long as nothing in Delta has changed since the run before, a start asks Spark nothing."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from devtools.checkpoint_files import LOG_PLAN
from tests.support.change_parts import ITEMS, ORDERS, column
from tidemark.conf.tables import FOLDER_TEMPLATE, TableName, parse_table_template
from tidemark.sinks.audit import AuditColumns
from tidemark.sinks.delta import sink as sink_module
from tidemark.sinks.delta.local_log import log_after_commit, read_log
from tidemark.sinks.delta.locations import CatalogLake, FolderLake, LastEpoch
from tidemark.sinks.delta.seen_copies import SeenCopies
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.codec import PLAN
from tidemark.state.checkpoint.layout import JOB_FILE, copy_file, plan_file, seen_copies_file
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CheckpointError, SinkError
from tidemark.state.seen_copy import SeenCopy, TableLog

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000001", "lake")
APPLICATION = f"tidemark/{JOB.uuid}/{ORDERS.table}"
WRITTEN = {ORDERS.table, ITEMS.table}


class SparkAskedError(Exception):
    pass


def no_spark() -> SparkSession:
    raise SparkAskedError


def commit(folder: Path, version: int, *actions: dict[str, Any]) -> None:
    """Writes a commit of Delta's log, that of an epoch of ORDERS unless actions are given."""
    folder.mkdir(parents=True, exist_ok=True)
    epoch = {"txn": {"appId": APPLICATION, "version": version}}
    lines = [{"commitInfo": {"txnId": f"{folder} {version}"}}, *(actions or (epoch, {"add": {"path": "a"}}))]
    (folder / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


@dataclass
class Job:
    """A job that has written two tables, up to epoch 2, and seen them in version 2."""

    root: Path
    sink: DeltaSink = field(init=False)

    def __post_init__(self) -> None:
        store = LocalStore(str(self.root / "checkpoint"))
        self.sink = DeltaSink(FolderLake(f"{self.root}/lake"), "mirror", {}, store, no_spark)
        store.create(JOB_FILE, b"a job")
        for schema in (ORDERS, ITEMS):
            store.create(copy_file(str(schema.table)), str(schema.table).encode())
            for version in range(3):
                commit(self.log(schema.table.name), version)
        for epoch in (1, 2):
            store.create(plan_file(epoch), PLAN.encode(LOG_PLAN))
        self.keep()

    def log(self, table: str = "orders") -> Path:
        return self.root / "lake" / f"shop.{table}" / "_delta_log"

    def keep(self) -> None:
        """Notes the copies as they are."""
        seen = SeenCopies()
        for schema in (ORDERS, ITEMS):
            folder = self.log(schema.table.name)
            before = read_log(folder)
            assert before is not None
            seen.look(schema.table, before, str(schema.table), self.sink._checked(JOB, schema))
            seen.end_look(schema.table, LastEpoch(2, 2, set_back=False, newest=before.version), folder)
        replace(self.sink, seen=seen).keep_seen()

    def opened(self) -> DeltaSink:
        """The sink of a run of its own."""
        return replace(self.sink, seen=SeenCopies())

    def start(self) -> None:
        sink = self.opened()
        assert sink.are_as_left(JOB, [ORDERS, ITEMS])
        assert sink.check([ORDERS, ITEMS], JOB, WRITTEN) == []
        sink.prepare(JOB, [ORDERS, ITEMS], WRITTEN)

    def require_asks(self, *, sink: DeltaSink | None = None, job: JobIdentity = JOB, schema: Any = ORDERS) -> None:
        opened = self.opened() if sink is None else sink
        assert not opened.are_as_left(job, [ITEMS, schema])
        for act in (opened.check, lambda schemas, job, written: opened.prepare(job, schemas, written)):
            with pytest.raises(SparkAskedError):
                act([ITEMS, schema], job, WRITTEN)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_copies_as_the_job_has_left_them_are_not_asked_about(job: Job) -> None:
    job.start()
    sink = job.opened()
    sink.prepare(JOB, [ORDERS, ITEMS], WRITTEN)
    assert sink.seen.versions == {ORDERS.table: 2, ITEMS.table: 2}
    sink.keep_seen()
    assert job.sink.checkpoint.list("seen_copies") == [seen_copies_file(1)]  # it says the same
    job.start()


def test_prepare_asks_although_check_did_not_have_to(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else commits in between."""
    sink, check = job.opened(), DeltaSink.check

    def checked(*given: Any) -> Any:
        found = check(*given)
        commit(job.log(), 3, {"add": {}})
        return found

    monkeypatch.setattr(sink_module.DeltaSink, "check", checked)
    with pytest.raises(SparkAskedError):
        sink.prepare(JOB, [ORDERS, ITEMS], WRITTEN)


def of_another_writer(job: Job) -> None:
    """Also RESTORE and OPTIMIZE are commits."""
    commit(job.log(), 3, {"commitInfo": {"operation": "RESTORE"}})


def set_back(job: Job) -> None:
    (job.log() / f"{2:020d}.json").unlink()


def of_another_history(job: Job) -> None:
    """The table was set back, and an epoch has the same number and version."""
    commit(job.log(), 2, {"txn": {"appId": APPLICATION, "version": 2}}, {"add": {"path": "b"}})


def gone(job: Job) -> None:
    shutil.rmtree(job.log())


def exchanged(job: Job) -> None:
    gone(job)
    shutil.copytree(job.log("items"), job.log())


def lost_commit(job: Job) -> None:
    (job.log() / f"{1:020d}.json").unlink()


def checkpoint_of_a_newer_version(job: Job) -> None:
    (job.log() / f"{3:020d}.checkpoint.parquet").write_bytes(b"")


def checkpoint_of_delta(job: Job) -> None:
    (job.log() / f"{2:020d}.checkpoint.parquet").write_bytes(b"")


def commits_of_a_catalog(job: Job) -> None:
    (job.log() / "_staged_commits").mkdir()
    (job.log() / "_staged_commits" / f"{3:020d}.9f2c.json").write_bytes(b"")


def something_unknown(job: Job) -> None:
    (job.log() / "what").write_bytes(b"")


@pytest.mark.pitfall(90)
@pytest.mark.parametrize(
    "change",
    [
        of_another_writer,
        set_back,
        of_another_history,
        exchanged,
        lost_commit,
        checkpoint_of_delta,
        checkpoint_of_a_newer_version,
        commits_of_a_catalog,
        something_unknown,
    ],
)
def test_spark_is_asked_about_a_table_whose_log_has_changed(job: Job, change: Callable[[Job], None]) -> None:
    change(job)
    job.require_asks()


@pytest.mark.pitfall(90)
def test_spark_is_asked_about_a_table_whose_log_is_gone(job: Job) -> None:
    gone(job)
    job.require_asks()
    shutil.rmtree(job.log().parent)
    with pytest.raises(SinkError, match="which this job wrote, is gone"):
        job.opened().prepare(JOB, [ITEMS, ORDERS], WRITTEN)


def test_what_spark_leaves_beside_the_log_is_no_change(job: Job) -> None:
    (job.log() / f"{2:020d}.crc").write_bytes(b"{}")
    (job.log() / f".{2:020d}.json.crc").write_bytes(b"")
    (job.log() / "_staged_commits").mkdir()
    job.start()


@pytest.mark.parametrize("odd", [commits_of_a_catalog, something_unknown, checkpoint_of_a_newer_version, gone])
def test_a_log_that_only_spark_understands_is_not_noted(job: Job, odd: Callable[[Job], None]) -> None:
    odd(job)
    assert read_log(job.log()) is None


def test_spark_is_asked_if_the_job_file_or_the_table_has_changed(job: Job, tmp_path: Path) -> None:
    sink = job.sink
    for changed in (
        replace(sink, style="changelog"),
        replace(sink, partition_by={TableName("shop", "orders"): ("id",)}),
        replace(sink, audit=AuditColumns(deleted="_deleted")),
        replace(sink, audit=AuditColumns(synced_at="_at")),
    ):
        job.require_asks(sink=replace(changed, seen=SeenCopies()))
    shutil.copytree(tmp_path / "lake", tmp_path / "lake2")
    job.require_asks(sink=replace(job.opened(), lake=FolderLake(f"{tmp_path}/lake2")))
    for lake in (FolderLake("s3a://bucket/lake"), CatalogLake("spark_catalog", FOLDER_TEMPLATE)):
        assert not replace(job.opened(), lake=lake).are_as_left(JOB, [ORDERS])
    renamed = FolderLake(f"{tmp_path}/lake", parse_table_template("{schema}_{table}"))
    assert not replace(job.opened(), lake=renamed).are_as_left(JOB, [ORDERS])
    added = replace(ORDERS, columns=(*ORDERS.columns, column("more", "int", "int32")))
    for schema in (added, replace(ORDERS, version=2), replace(ORDERS, key=())):
        assert not job.opened().are_as_left(JOB, [schema])
    job.require_asks(schema=added)
    job.require_asks(job=replace(JOB, uuid="another"))


def test_another_tidemark_or_spark_asks_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sink_module, pyspark):
        with monkeypatch.context() as patched:
            patched.setattr(module, "__version__", "9.9.9")
            job.require_asks()


@pytest.mark.pitfall(90)
def test_a_checkpoint_that_was_set_back_is_noticed_without_spark(job: Job) -> None:
    """Its files are older than the note: some were put back one by one. If the note is older, too, Spark is asked."""
    job.sink.checkpoint.delete(plan_file(2))
    with pytest.raises(CheckpointError, match=r"has epoch 2, but the newest plan of the checkpoint is that of epoch 1"):
        job.opened().prepare(JOB, [ORDERS, ITEMS], WRITTEN)


def test_a_checkpoint_without_what_a_run_has_seen_or_with_an_unreadable_one_asks(job: Job) -> None:
    store, file = job.sink.checkpoint, job.root / "checkpoint" / seen_copies_file(1)
    content = file.read_bytes()
    file.write_bytes(content[:-9])
    job.require_asks()
    file.write_bytes(content.replace(b'"version":1,"product":"', b'"version":2,"product":"9', 1))
    job.require_asks()
    job.keep()  # replaces it
    job.start()
    assert store.list("seen_copies") == [seen_copies_file(2)]
    store.delete(seen_copies_file(2))
    job.require_asks()


def test_a_lost_identifier_of_a_copy_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    name = copy_file("shop.orders")
    job.sink.checkpoint.delete(name)
    assert not job.opened().are_as_left(JOB, [ORDERS])
    with monkeypatch.context() as patched:
        patched.setattr(DeltaSink, "_session", lambda _: None)
        patched.setattr(FolderLake, "look", lambda *_: None)
        with pytest.raises(CheckpointError, match=f"has lost its file {name}"):
            job.opened().check([ORDERS], JOB, WRITTEN)
    job.sink.checkpoint.create(name, b"another table")
    job.require_asks()


# What a run may note


def known(folder: Path) -> SeenCopies:
    """Returns the notes of a run that knows ORDERS in the newest version."""
    seen, before = SeenCopies(), read_log(folder)
    assert before is not None
    seen.look(ORDERS.table, before, "id", "checked")
    seen.end_look(ORDERS.table, LastEpoch(0, 0, set_back=False, newest=before.version), folder)
    return seen


def epochs_of(seen: SeenCopies) -> list[tuple[int, int]]:
    return [(copy.epoch, copy.log.version) for copy in seen.known()]


def test_a_copy_stays_known_after_the_runs_own_commits(tmp_path: Path) -> None:
    for version in range(3):
        commit(tmp_path, version)
    seen = known(tmp_path)
    assert epochs_of(seen) == [(0, 2)]
    for version in (3, 4):
        commit(tmp_path, version)
        seen.commit(ORDERS.table, version, tmp_path, APPLICATION, version)
    assert epochs_of(seen) == [(4, 4)]
    assert seen.known()[0].log == read_log(tmp_path)


def test_commits_that_follow_others_or_are_not_the_runs_own_are_not_noted(tmp_path: Path) -> None:
    epoch = {"txn": {"appId": APPLICATION, "version": 1}}
    cases: list[tuple[int, list[dict[str, Any]]]] = [
        (1, [{"txn": {"appId": "another", "version": 1}}]),
        (1, [{"txn": {"appId": APPLICATION, "version": 2}}]),
        (1, [{"add": {}}]),
        (1, [epoch, {"metaData": {}}]),
        (1, [epoch, {"protocol": {}}]),
        (2, [epoch]),  # somebody else has made version 1
    ]
    for number, (version, actions) in enumerate(cases):
        folder = tmp_path / str(number)
        commit(folder, 0)
        seen = known(folder)
        for between in range(1, version):
            commit(folder, between, {"add": {}})
        commit(folder, version, *actions)
        seen.commit(ORDERS.table, version, folder, APPLICATION, 1)
        assert seen.known() == (), (version, actions)
        commit(folder, version + 1, epoch)
        seen.commit(ORDERS.table, version + 1, folder, APPLICATION, 1)
        assert seen.known() == ()
    folder = tmp_path / "log"
    commit(folder, 0, epoch)
    assert log_after_commit(folder, 0, APPLICATION, 1) is not None
    commit(folder, 1, {"add": {}})  # RESTORE, before the run looks back
    assert log_after_commit(folder, 0, APPLICATION, 1) is None


def test_a_commit_that_somebody_has_damaged_is_not_noted_and_ends_no_job(tmp_path: Path) -> None:
    Path(tmp_path, f"{0:020d}.json").write_bytes(b'{"txn": ')
    assert log_after_commit(tmp_path, 0, APPLICATION, 1) is None


def test_a_look_counts_only_if_the_log_is_the_same_before_and_after_it(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    commit(folder, 0)
    before = read_log(folder)
    last = LastEpoch(0, 0, set_back=False, newest=0)
    for end, told in ((last, True), (replace(last, set_back=True), False), (replace(last, newest=1), False)):
        seen = SeenCopies()
        seen.look(ORDERS.table, before, "id", "checked")
        seen.end_look(ORDERS.table, end, folder)
        assert bool(seen.known()) is told
    seen = SeenCopies()
    seen.end_look(ORDERS.table, last, folder)
    seen.look(ORDERS.table, None, "id", "checked")
    seen.end_look(ORDERS.table, last, None)
    seen.look(ORDERS.table, before, "id", "checked")
    commit(folder, 1)
    seen.end_look(ORDERS.table, last, folder)
    assert seen.known() == ()
    seen.know(SeenCopy(ORDERS.table, "id", 1, TableLog(1, "", ""), ""))
    seen.forget(ORDERS.table)
    assert seen.known() == ()
