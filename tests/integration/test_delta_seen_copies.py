"""A run notes what it has seen of its copies in Delta, and the next start asks Spark about all others."""

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from devtools.checkpoint_files import LOG_PLAN
from tests.support.change_parts import ITEMS, ORDERS, SCHEMAS, snapshot_part
from tests.support.delta import newest_version, write_epochs
from tidemark.sinks.delta import sink as sink_module
from tidemark.sinks.delta.epoch import EpochWriter
from tidemark.sinks.delta.locations import FolderLake
from tidemark.sinks.delta.seen_copies import SeenCopies
from tidemark.sinks.delta.sink import DeltaSink
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.codec import PLAN
from tidemark.state.checkpoint.layout import JOB_FILE, plan_file
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import CopySetBackError

pytestmark = [pytest.mark.integration, pytest.mark.pitfall(90)]

JOB = JobIdentity("7b7b7b7b-0000-4000-8000-000000000001", "lake")
TABLES, WRITTEN = [ORDERS, ITEMS], {ORDERS.table, ITEMS.table}


class Lake:
    """A job with two copies, of which one is written. Each start has a sink of its own."""

    def __init__(self, session: SparkSession, root: Path) -> None:
        self._session, self._root, self._asked, self._epoch = session, root, 0, 0
        store = LocalStore(str(root / "checkpoint"))
        store.create(JOB_FILE, b"a job")
        store.create(plan_file(9), PLAN.encode(LOG_PLAN))
        self._sink = DeltaSink(FolderLake(f"{root}/lake"), "mirror", {}, store, self._spark)
        self.relation = self._sink.lake.location_of(ORDERS.table).relation

    def _spark(self) -> SparkSession:
        self._asked += 1
        return self._session

    def start(self) -> DeltaSink:
        sink = replace(self._sink, seen=SeenCopies())
        sink.prepare(JOB, TABLES, WRITTEN if self._epoch else ())
        return sink

    def asks(self) -> bool:
        """True if a start asks Spark. What it has seen is noted then."""
        before = self._asked
        self.start().keep_seen()
        return self._asked > before

    def write(self, sink: DeltaSink) -> None:
        self._epoch += 1
        row = (self._epoch, "Ada", Decimal("1.50"), 0, None)
        write_epochs(sink, JOB, snapshot_part(self._epoch, self._epoch, ORDERS, [row]), SCHEMAS)

    def restore(self, version: int) -> None:
        self._session.sql(f"RESTORE TABLE {self.relation} TO VERSION AS OF {version}")

    def alter(self) -> None:
        self._session.sql(f"ALTER TABLE {self.relation} SET TBLPROPERTIES ('a' = '{self._asked}')")

    def newest(self) -> int:
        return newest_version(self._root / "lake" / str(ORDERS.table))


@pytest.fixture
def lake(delta_session: SparkSession, tmp_path: Path) -> Lake:
    return Lake(delta_session, tmp_path)


def before_the_commit(act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    commit = EpochWriter._commit

    def acted(*given: Any) -> None:
        act()
        commit(*given)

    patch.setattr(EpochWriter, "_commit", acted)


@pytest.mark.every_server
def test_a_run_notes_new_tables_and_its_own_commits(lake: Lake) -> None:
    sink = lake.start()
    lake.write(sink)
    sink.keep_seen()
    assert not lake.asks()
    sink = lake.start()
    lake.write(sink)
    assert lake.asks()  # the run has not noted it yet, as if it was killed
    assert not lake.asks()
    lake.write(sink)
    version = lake.newest()
    lake.restore(version - 1)
    sink.keep_seen()  # of its own commit, which is not the newest one any more
    with pytest.raises(CopySetBackError):
        lake.start()
    lake.restore(version)
    assert [lake.asks(), lake.asks()] == [True, False]


@pytest.mark.every_server
def test_commits_of_others_are_not_noted_unseen(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = lake.start()
    with monkeypatch.context() as patch:
        before_the_commit(lake.alter, patch)
        lake.write(sink)
    sink.keep_seen()
    assert [lake.asks(), lake.asks()] == [True, False]
    sink = lake.start()
    lake.alter()
    lake.write(sink)  # its own looks at the table find nothing wrong, but these are not all that a start looks for
    sink.keep_seen()
    last_epoch = sink_module.last_epoch
    with monkeypatch.context() as patch:
        patch.setattr(sink_module, "last_epoch", lambda *given: (lake.alter(), last_epoch(*given))[1])
        assert lake.asks()
    assert [lake.asks(), lake.asks()] == [True, False]
    lake.alter()
    assert [lake.asks(), lake.asks()] == [True, False]
