"""A slot that can't move (restart_lsn): the server decodes all since then for every range, so there are few ranges."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import pytest

from devtools.servers import start_server
from tests.support.postgres_jobs import Job, make_job_in
from tests.support.postgres_log import VERSIONS
from tests.support.servers import fresh_database
from tidemark.readers.postgres.slot import held_back
from tidemark.readers.postgres.slot.held_back import AdvancePace
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.log_extent import WalExtent
from tidemark.state.plan import PlanRecord
from tidemark.state.position import WalPosition

pytestmark = [pytest.mark.integration]
MIB = 1 << 20


@pytest.fixture(params=[pytest.param(VERSIONS[0], marks=pytest.mark.every_server), VERSIONS[-1]])
def job(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Job]:
    options = {"max_prepared_transactions": "5", "max_wal_size": "4GB"}
    with start_server("postgres", options, request.param) as server, fresh_database(server) as database:
        yield make_job_in(database, tmp_path, log={"max_batch_bytes": "1MiB"})


def load(job: Job, first: int, parts: int = 10) -> None:
    """Writes 3 MiB of log in each of some transactions."""
    for part in range(parts):
        keys = f"generate_series({first + part * 100}, {first + part * 100 + 99})"
        job.do(
            f"INSERT INTO shop.t SELECT n, string_agg(md5(n::text || g::text), '') FROM {keys} n, generate_series(1, 900) g "
            "GROUP BY n"
        )


def follow(job: Job) -> tuple[int, list[str]]:
    """Runs the job. Returns the number of its epochs, and its warnings."""
    create_plan, warnings = Checkpoint.create_plan, list[str]()

    def noted(self: Checkpoint, record: PlanRecord) -> None:
        warnings.extend(record.warnings)
        create_plan(self, record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "create_plan", noted)
        epochs = len(job.run())
    assert job.copied() == dict(job.database.query("SELECT id, v FROM shop.t"))
    return epochs, warnings


def decoded_from(job: Job) -> int:
    ((lsn,),) = job.database.query(
        "SELECT restart_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s", (job.database.name,)
    )
    return int(lsn)


@pytest.mark.pitfall(119)
def test_an_open_transaction_makes_few_long_ranges_and_is_named(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "WORTH_SAYING_BYTES", 4 * MIB)
    job.do("CREATE TABLE shop.idle (id int)")
    with contextlib.closing(job.database.connect()) as idle, idle.cursor() as cursor:
        idle.autocommit = False
        cursor.execute("SET application_name = 'forgotten'; INSERT INTO shop.idle VALUES (1)")
        load(job, 1000)
        epochs, warnings = follow(job)
        held_from = decoded_from(job)
        assert epochs <= 8  # of 1, 1, 2, 4, 8, 16 MiB; there were 30
        (warning,) = warnings
        assert f"process {idle.info.backend_pid} " in warning
        assert "forgotten" in warning
        load(job, 3000)
        assert follow(job)[0] <= 4
        assert decoded_from(job) == held_from
        ending = re.search(r"SELECT pg_terminate_backend\(\d+\)", warning)
        assert ending is not None
        job.do(ending[0])
    for first in (5000, 7000, 9000):
        job.do("CHECKPOINT")  # the server notes which transactions are open
        load(job, first, 1)
        follow(job)
    assert decoded_from(job) > held_from


@pytest.mark.every_server
@pytest.mark.pitfall(119)
def test_a_prepared_transaction_that_holds_the_slot_back_is_named(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_back, "WORTH_SAYING_BYTES", 4 * MIB)
    job.do("CREATE TABLE shop.idle (id int)", "BEGIN; INSERT INTO shop.idle VALUES (1); PREPARE TRANSACTION 'order 7'")
    load(job, 1000)
    try:
        (warning,) = follow(job)[1]
    finally:
        job.do("ROLLBACK PREPARED 'order 7'")
    assert "prepared transaction order 7" in warning


@pytest.mark.pitfall(119)
def test_the_slot_is_advanced_less_often_the_longer_it_takes() -> None:
    pace, start = AdvancePace(), WalPosition(5000 * MIB)

    def is_due(now: float, held: int, gain: int) -> bool:
        extent = WalExtent(start, WalPosition(9000 * MIB), decoded_from=WalPosition(start.lsn - held * MIB))
        return pace.is_due(extent, WalPosition(start.lsn + gain * MIB), now=now)

    assert is_due(now=100.0, held=0, gain=1)
    pace.advanced(began=100.0, ended=100.01)
    assert not is_due(now=104.0, held=900, gain=100)
    assert is_due(now=105.1, held=900, gain=100)
    pace.advanced(began=106.0, ended=108.0)
    assert not is_due(now=140.0, held=900, gain=800)
    assert is_due(now=148.1, held=900, gain=1)
    assert is_due(now=115.0, held=900, gain=900)
    assert not is_due(now=115.0, held=1, gain=2)
