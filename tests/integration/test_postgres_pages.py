"""Tables without a key on real servers, split by the pages that their rows are in."""

import contextlib
import time
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest

from tests.support.epochs import run_epochs
from tests.support.jobs import source_of, write_job
from tests.support.keyless import CREATE, HOLDERS, ROWS, KeylessWriter, assert_keyless_copied
from tests.support.postgres_log import LoggedDatabase, logged_postgres  # noqa: F401  a fixture
from tests.support.postgres_roles import role
from tests.support.postgres_snapshot import NO_ANCHOR, SnapshotTable, rows_of
from tests.support.servers import Database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.enumerator.pages import MAX_FAILED_ATTEMPTS
from tidemark.readers import session
from tidemark.readers.postgres import connect
from tidemark.readers.postgres.keys.split_keys import PostgresKeys
from tidemark.readers.postgres.session import SqlSession
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TableLockedError
from tidemark.state.key_encoding import encode_integer
from tidemark.state.plan import SnapshotWork
from tidemark.state.split import Bound, KeyRange, SharedSnapshot, Split, StageChunk

pytestmark = pytest.mark.integration


class Pages:
    """Table `public.t`, and the keys through which its snapshot is shared."""

    def __init__(self, source: LoggedDatabase) -> None:
        self.source = source
        source.execute(*CREATE)
        self.table = SnapshotTable(source)
        self.name = self.table.schema.table
        session = SqlSession(lambda: connect.connect(parse_endpoint(source.database.url), None))
        self.keys = PostgresKeys(session, {self.name: self.table.schema})

    def ranges(self, pages: int) -> list[KeyRange]:
        found = self.keys.pages(self.name)
        assert found is not None
        boundaries = [
            Bound((f"({p},0)",), encode_integer(p, unsigned=True).hex()) for p in range(pages, found.page_count, pages)
        ]
        return [KeyRange(a, b) for a, b in zip([None, *boundaries], [*boundaries, None], strict=True)]

    def split(self, key_range: KeyRange, shared: SharedSnapshot) -> Split:
        return replace(self.table.split(key_range), columns=(), pages=StageChunk(7, shared))

    def release(self) -> None:
        """Until the server has noticed."""
        self.keys.release_snapshot(self.name)
        while self.source.query(f"SELECT FROM pg_stat_activity WHERE {HOLDERS}"):
            time.sleep(0.01)

    def expired(self, shared: SharedSnapshot) -> bool:
        """Is the snapshot gone, for a reader?"""
        with self.table.reader() as reader:
            read = reader.read(self.split(KeyRange(None, None), shared), self.table.schema, NO_ANCHOR)
        assert read.report.kind in {"staged", "expired"}
        assert read.rows.num_rows == (0 if read.report.kind == "expired" else ROWS)
        return read.report.kind == "expired"


@pytest.fixture
def pages(logged_postgres: LoggedDatabase) -> Pages:  # noqa: F811
    return Pages(logged_postgres)


@pytest.mark.pitfall(24)
def test_each_row_is_in_one_split_however_it_moves(pages: Pages) -> None:
    """All rows get new places, and vacuum gives the old ones to others, between the splits."""
    source = pages.source
    expected = sorted(source.query("SELECT * FROM public.t"))
    shared = pages.keys.share_snapshot(pages.name)
    read, highs = [], set()
    with pages.table.reader() as reader:
        for key_range in pages.ranges(5):
            source.execute("UPDATE public.t SET version = version + 1", "VACUUM public.t")
            source.execute("INSERT INTO public.t VALUES (-1, 1, '')", "DELETE FROM public.t WHERE uid % 7 = 0")
            split = reader.read(pages.split(key_range, shared), pages.table.schema, NO_ANCHOR)
            assert split.report.kind == "staged"
            read += rows_of(split.rows)
            highs.add(split.report.high)
    assert sorted(read) == expected
    assert highs == {shared.high}
    assert len(pages.ranges(5)) > 5


def test_a_snapshot_is_gone_with_its_session(pages: Pages) -> None:
    shared = pages.keys.share_snapshot(pages.name)
    assert not pages.expired(shared)
    assert pages.keys.is_shared(pages.name, shared)
    pages.source.query(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {HOLDERS}")
    assert pages.expired(shared)
    assert not pages.keys.is_shared(pages.name, shared)
    again = pages.keys.share_snapshot(pages.name)
    assert not pages.keys.is_shared(pages.name, shared)
    assert not pages.expired(again)
    pages.release()
    assert pages.expired(again)


def test_a_name_that_means_another_snapshot_now_is_not_taken(pages: Pages) -> None:
    shared = pages.keys.share_snapshot(pages.name)
    pages.source.execute("UPDATE public.t SET version = 2 WHERE uid = 1")
    other = pages.keys.share_snapshot(pages.name)
    assert pages.expired(replace(shared, name=other.name))
    assert not pages.expired(other)


def test_an_equal_snapshot_of_a_table_that_was_emptied_since_is_not_taken(pages: Pages) -> None:
    """TRUNCATE is no matter of snapshots: older ones see no rows. Whoever shares one holds the table; here another session
    has the same snapshot, and its name, but not the table."""
    shared = pages.keys.share_snapshot(pages.name)
    with contextlib.closing(pages.source.database.connect()) as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SET TRANSACTION SNAPSHOT %s", (shared.name,))
        cursor.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text")
        name, text = cursor.fetchone()
        assert text == shared.high.snapshot
        pages.release()
        assert not pages.expired(replace(shared, name=name))
        pages.source.execute("TRUNCATE public.t")
        assert pages.expired(replace(shared, name=name))


def test_nobody_rewrites_the_table_while_its_snapshot_is_shared(pages: Pages) -> None:
    pages.keys.share_snapshot(pages.name)
    with contextlib.closing(pages.source.database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
        for statement in (
            "TRUNCATE public.t",
            "VACUUM FULL public.t",
            "ALTER TABLE public.t ALTER version TYPE bigint",
        ):
            with pytest.raises(psycopg2.errors.LockNotAvailable):
                cursor.execute(statement)


def test_a_table_that_is_locked_when_its_snapshot_is_shared_is_not_waited_for_without_limit(
    pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "LOCK_SECONDS", 1)
    monkeypatch.setattr(session, "ATTEMPTS", 1)
    with contextlib.closing(pages.source.database.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE public.t")
        with pytest.raises(TableLockedError, match="lock timeout"):
            pages.keys.share_snapshot(pages.name)


def test_tables_that_are_not_read_by_pages(logged_postgres: LoggedDatabase) -> None:  # noqa: F811
    pages = Pages(logged_postgres)
    logged_postgres.execute(
        "CREATE TABLE public.parted (a int) PARTITION BY RANGE (a)",
        "CREATE TABLE public.parted_1 PARTITION OF public.parted DEFAULT",
    )
    assert pages.keys.pages(replace(pages.name, name="parted")) is None
    assert pages.keys.pages(replace(pages.name, name="missing")) is None


def _splits(folder: Path) -> list[Split]:
    """The splits of the newest plan that has some. Whoever writes to the server may have the log read in between."""
    checkpoint = Checkpoint.at(str(folder / "checkpoint"))
    works = [checkpoint.plan(epoch).plan.work for epoch in sorted(checkpoint.plan_epochs(), reverse=True)]
    return next(([s for task in work.tasks for s in task] for work in works if isinstance(work, SnapshotWork)), [])


@pytest.fixture
def keyless(postgres18_database: Database) -> Database:
    postgres18_database.execute(*CREATE)
    return postgres18_database


@pytest.mark.parametrize(("format_", "grant"), [("parquet", "SELECT"), ("jsonl", "SELECT (uid, version, note, ctid)")])
def test_a_job_that_is_begun_again_in_the_middle(keyless: Database, tmp_path: Path, format_: str, grant: str) -> None:
    sink = {"type": "files", "path": str(tmp_path / "out"), "format": format_}
    keyless.execute(f"CREATE PUBLICATION {keyless.name} FOR TABLE t")
    with role(keyless, "USAGE ON SCHEMA public", f"{grant} ON t", attributes="LOGIN REPLICATION") as login:
        password = login.password.get_secret_value()
        url = f"postgresql://{login.user}:{password}@{login.host}:{login.port}/{keyless.name}"
        source = source_of(keyless, url=url)
        job = write_job(tmp_path, source=source, sink=sink, snapshot={"split_rows": 100, "parallelism": 2})
        run_epochs(job, at_most=2)
        with KeylessWriter(keyless) as writer:
            assert all(isinstance(split.pages, StageChunk) for split in _splits(tmp_path))
            assert not list((tmp_path / "out").rglob(f"*.{format_}")), "a part of a generation was handed out"
            run_epochs(job)  # the snapshot of before is gone, and two more are lost
        run_epochs(job)
    assert writer.ended >= 2
    assert_keyless_copied(tmp_path, keyless, format_)
    assert not list((tmp_path / "checkpoint").glob("staged/*"))


def test_a_table_whose_snapshots_never_live_long_enough_is_one_split(keyless: Database, tmp_path: Path) -> None:
    sink = {"type": "files", "path": str(tmp_path / "out")}
    job = write_job(tmp_path, source=source_of(keyless), sink=sink, snapshot={"split_rows": 400, "parallelism": 2})
    attempts = set()
    while all(split.pages for split in _splits(tmp_path)):
        assert len(attempts) <= MAX_FAILED_ATTEMPTS
        run_epochs(job, at_most=1)
        attempts |= {split.pages.attempt for split in _splits(tmp_path) if isinstance(split.pages, StageChunk)}
    assert len(attempts) == MAX_FAILED_ATTEMPTS
    (split,) = _splits(tmp_path)
    assert split.pages is None
    run_epochs(job)
    assert_keyless_copied(tmp_path, keyless)


def test_a_table_that_joins_later_is_read_by_pages_too(postgres18_database: Database, tmp_path: Path) -> None:
    postgres18_database.execute("CREATE TABLE before (id int PRIMARY KEY)", "INSERT INTO before VALUES (1)")
    sink = {"type": "files", "path": str(tmp_path / "out")}
    job = write_job(
        tmp_path, source=source_of(postgres18_database), sink=sink, snapshot={"split_rows": 1000, "parallelism": 2}
    )
    run_epochs(job)
    postgres18_database.execute(*CREATE)
    while not any(split.pages for split in _splits(tmp_path)):
        run_epochs(job, at_most=1)
    assert all(isinstance(split.pages, StageChunk) for split in _splits(tmp_path))
    with KeylessWriter(postgres18_database):
        run_epochs(job)
    run_epochs(job)
    assert_keyless_copied(tmp_path, postgres18_database)
