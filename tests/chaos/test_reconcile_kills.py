"""`tidemark reconcile --repair` and the running job are killed while the copy is damaged and the source is written to."""

import json
import random
import secrets
import signal
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.history import assert_mirrored, assert_newest_rows
from tests.support.jobs import BY_DRIVER, Process, start_tidemark
from tests.support.kills import run_until_done
from tests.support.reconciling import assert_equal, edit_files, files_job_of, job_of, row_counts
from tests.support.servers import Database
from tests.support.workload import Uids, Writers, create_tables
from tidemark.conf.load import load_job_file
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = [pytest.mark.chaos, pytest.mark.integration, pytest.mark.timeout(900)]

STEPS = (
    "repairs.read",
    "repairs.joined",
    "repairs.emitted",
    "log.before_report",
    "sink.before_commit",
    "sink.after_commit",
    "driver.epoch_written",
    "driver.epoch_committed",
    "planner.after_plan",
)


class Driver:
    """The running job. It dies at a step, and is started again."""

    def __init__(self, job: Path, generator: random.Random) -> None:
        self.job, self.generator = job, generator
        self.deaths = 0
        self.process: Process | None = None

    def start(self) -> None:
        self.place = self.job.parent / f"failpoints-{uuid.uuid4().hex}"
        self.place.mkdir()
        environment = {"TIDEMARK_FAILPOINTS": str(self.place)}
        self.process = process = start_tidemark(self.job, "--set", "trigger=200ms", *BY_DRIVER, environment=environment)
        process.wait_until(lambda: bool(process.events()))

    def arm(self) -> None:
        """Lets it die at the next such step."""
        (self.place / self.generator.choice(STEPS)).write_text("kill")

    def look(self) -> None:
        """Starts it again if it was killed."""
        assert self.process is not None
        code = self.process.popen.poll()
        if code is not None:
            assert code == -signal.SIGKILL, self.process.error_text()
            self.process.kill()
            self.deaths += 1
            self.start()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()


def compare(driver: Driver, job: Path, seconds: float | None) -> dict[str, Any] | None:
    """Returns what it found; None if it was killed after `seconds`."""
    process = start_tidemark(job, "--repair", "--json", "--examples", "2000", "--wait", "90", command="reconcile")
    began = time.monotonic()
    while process.popen.poll() is None:
        driver.look()
        if seconds is not None and time.monotonic() - began > seconds:
            process.kill()
            return None
        time.sleep(0.05)
    assert process.popen.returncode in (0, 8), process.error_text()
    found: dict[str, Any] = json.loads(process.out.read_text().splitlines()[0])
    return found


def keys_of(found: dict[str, Any]) -> set[int]:
    """The keys of `orders` that differ. No other table is damaged."""
    differing = {table["table"].split(".")[1]: table["examples"] for table in found["tables"] if table["examples"]}
    assert differing.keys() <= {"orders"}, differing
    return {int(example["key"]["id"]) for example in differing.get("orders", ())}


def damage_mirror(_: Database, target: Database, __: Path, generator: random.Random) -> set[int]:
    """Rows of orders are gone, or have another value. Returns their keys."""
    keys = [row[0] for row in target.query("SELECT id FROM copy_orders")]
    chosen = generator.sample(keys, 12)
    gone, changed = chosen[:6], chosen[6:]
    target.execute(
        f"DELETE FROM copy_orders WHERE id IN ({', '.join(map(str, gone))})",
        f"UPDATE copy_orders SET note = 'wrong' WHERE id IN ({', '.join(map(str, changed))})",
    )
    return set(chosen)


def damage_files(source: Database, _: Database, job: Path, generator: random.Random) -> set[int]:
    """Rows of orders have another value in the files that there are. Returns their keys."""
    keys = set(generator.sample([row[0] for row in source.query("SELECT id FROM orders")], 8))
    folder = job.parent / "copy" / f"{source.schema}.orders"
    damaged: set[int] = set()

    def spoil(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            if row.get("id") in keys and row["_change_type"] != "delete":
                row["note"] = "wrong"
                damaged.add(row["id"])
        return rows

    edit_files(folder, spoil, "e*-s*" if generator.random() < 0.5 else "e*")
    return damaged


KINDS: dict[str, Callable[..., set[int]]] = {"mirror": damage_mirror, "files": damage_files}


@pytest.mark.usefixtures("long_version")
@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("origin", ["mysql_database", "postgres18_database"])
def test_no_repair_is_lost_and_nothing_else_is_reported(
    origin: str,
    kind: str,
    postgres_database: Database,
    tmp_path: Path,
    chaos_rounds: int,
    request: pytest.FixtureRequest,
) -> None:
    source: Database = request.getfixturevalue(origin)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    generator, uids = random.Random(seed), Uids()
    create_tables(source, rows=600, uids=uids)
    settings = {"snapshot": {"split_rows": 500, "parallelism": 1}}
    of_kind = (files_job_of, (source, tmp_path)) if kind == "files" else (job_of, (source, postgres_database, tmp_path))
    job = of_kind[0](*of_kind[1], **settings)
    run_until_done(job, {}, *BY_DRIVER)
    driver, damaged, finished = Driver(job, generator), set[int](), 0
    driver.start()
    try:
        with Writers(source, uids, count=2, seed=seed, pause_seconds=0.1):
            for number in range(chaos_rounds):
                damaged |= KINDS[kind](source, postgres_database, job, generator)
                driver.arm()
                found = compare(driver, job, None if number % 2 else generator.uniform(0.5, 5))
                if found is not None:
                    finished += 1
                    assert keys_of(found) <= damaged, seed
                until = time.monotonic() + 1.5
                while time.monotonic() < until:
                    driver.look()
                    time.sleep(0.05)
    finally:
        driver.kill()
    assert driver.deaths
    assert finished
    run_until_done(job, {}, *BY_DRIVER)
    for _ in range(2):
        process = start_tidemark(job, "--repair", command="reconcile")
        if process.wait() == 0:
            break
        run_until_done(job, {}, *BY_DRIVER)
    assert_equal(job, row_counts(source))
    if kind == "mirror":
        assert_mirrored(source, postgres_database)
    else:
        assert_newest_rows(tmp_path / "copy", source)
    checkpoint = Checkpoint.at(load_job_file(job).checkpoint)
    answers, outcomes = [answer for _, answer in checkpoint.signals().values()], checkpoint.outcomes()
    assert answers
    assert all(answer is not None and answer.accepted for answer in answers), answers
    assert all(outcome.accepted for outcome in outcomes.values()), outcomes
    assert len(outcomes) == len(answers)
