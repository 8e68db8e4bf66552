"""Runs the demo: a job copies a shop, is killed half-way, is restarted, follows the changes and catches up.

    make demo SOURCE=mysql SINK=mirror-postgres ROWS=300000

Into a mirror it also shows a table that gets a column, a table that is created while the job runs, and rows of the copy that
somebody has changed: `tidemark reconcile --repair` finds them. At the end source and copy are compared. SOURCE is mysql,
mariadb or postgres. SINK is mirror-postgres, mirror-mysql, mirror-mariadb, files or delta. All servers and files are private,
and are removed at the end.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from devtools.server import Server
from devtools.server_packages import ServerUnavailableError
from devtools.servers import start_server
from scripts.demo_compare import Comparison, Rows, compare, rows_in_database, rows_in_delta, rows_in_files
from scripts.demo_job import JobFailedError, JobProcess
from scripts.demo_shop import SHOPS, load_shop
from scripts.demo_table import DATABASE, ShopTable
from scripts.demo_writers import WRITERS, Writers
from tidemark.state.checkpoint.layout import Checkpoint, published_files
from tidemark.state.log_range import LogReport
from tidemark.state.phase import Phase
from tidemark.state.plan import LogWork

SOURCES = {"mysql": "MySQL", "mariadb": "MariaDB", "postgres": "PostgreSQL"}
SINKS = ("mirror-postgres", "mirror-mysql", "mirror-mariadb", "files", "delta")
COPY = "shop_copy"
SPLITS_WANTED = 60
KILL_WHEN_READ = 6
"""The number of splits that the running epoch must have published before the kill. The copy may or may not have them.
The second or third epoch with splits is the first that has so many. Epochs grow: the next one may have all others."""
FOLLOW_SECONDS = 12
RUN_TIMEOUT_SECONDS = 600
ROWS_DIFFER = 8
"""The exit code of `tidemark reconcile` if rows differ."""
COUPONS = ShopTable(
    "coupons",
    ("code",),
    0,
    "code VARCHAR(40) NOT NULL PRIMARY KEY, discount INT NOT NULL",
    "CONCAT('coupon ', i), i % 50",
)
"""A table that is created while the job runs."""
POLL_SECONDS = 0.02

JOB_FILE = """\
job: shop-demo
mode: full+incremental
trigger: 1s
checkpoint: ./checkpoint
source:
  url: ${{SHOP_URL}}
  tables: ["{schema}.*"]
  discover_seconds: 2
snapshot:
  split_rows: {split_rows}
  parallelism: 2
sink:
{sink}
"""
MIRROR = """\
  type: mirror
  table: "{table}"
  url: ${COPY_URL}"""
FILES = """\
  type: files
  path: ./copy"""
DELTA = """\
  type: delta
  path: ./copy
log:
  max_batch_seconds: 60                 # an epoch is six commits of one or two seconds each"""


def main() -> int:
    source = os.environ.get("SOURCE", "mysql")
    if source not in SOURCES:
        return _usage(f"SOURCE is {source!r}: it must be one of {', '.join(SOURCES)}")
    sink = os.environ.get("SINK", SINKS[0])
    if sink not in SINKS:
        return _usage(f"SINK is {sink!r}: it must be one of {', '.join(SINKS)}")
    rows = os.environ.get("ROWS", "300000")
    if not rows.isdecimal() or int(rows) < 1000:
        return _usage(f"ROWS is {rows!r}: it must be a number of at least 1000")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with contextlib.ExitStack() as stack:
            return 0 if Demo(stack, source, sink, int(rows)).run() else 1
    except (JobFailedError, ServerUnavailableError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped. All servers and files are removed.", file=sys.stderr)
        return 130


@dataclass(slots=True)
class Tally:
    """Log reports of the job's epochs, collected while it runs, because the checkpoint keeps only the newest ones."""

    checkpoint: Checkpoint
    reports: dict[int, tuple[Phase, LogReport]] = field(default_factory=dict)

    def update(self) -> None:
        committed = self.checkpoint.committed_epoch()
        for epoch in self.checkpoint.plan_epochs():
            if epoch <= committed and epoch not in self.reports:
                plan = self.checkpoint.plan(epoch).plan
                if isinstance(plan.work, LogWork):
                    self.reports[epoch] = (plan.phase, self.checkpoint.log_report(epoch))

    @property
    def changes(self) -> int:
        return sum(report.emitted_changes for _, report in self.reports.values())

    @property
    def gap_changes(self) -> int:
        return sum(report.emitted_changes for phase, report in self.reports.values() if phase is not Phase.STREAM)

    @property
    def contained_changes(self) -> int:
        return sum(report.filtered_changes for _, report in self.reports.values())

    @property
    def transactions(self) -> int:
        return sum(report.transactions for _, report in self.reports.values())


@dataclass(frozen=True, slots=True)
class Kill:
    """The progress at the moment of the SIGKILL."""

    processes: int
    splits_done: int
    rows_done: int
    splits_published: int


class Demo:
    """One run of the demo. `stack` ends its servers and processes and removes its folders, also after an error."""

    def __init__(self, stack: contextlib.ExitStack, source: str, sink: str, rows: int) -> None:
        self._stack, self._source, self._sink, self._rows = stack, source, sink, rows
        self._shop = SHOPS[source]
        self._folder = Path(tempfile.mkdtemp(prefix="tidemark-demo-"))
        stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
        self._environment: dict[str, str] = {}
        self._job_file = self._folder / "shop.yaml"
        self._checkpoint = Checkpoint.at(str(self._folder / "checkpoint"))
        self._tally = Tally(self._checkpoint)
        self._steps = 0
        self._tables = list(self._shop.tables)
        self._copy: Server | None = None

    def run(self) -> bool:
        """Runs all steps. Returns True if the copy is identical to the source."""
        started = time.monotonic()
        source, rows_of_copy = self._set_up()
        with Writers(source, self._rows) as writers:
            kill = self._run_and_kill()
            self._resume_and_follow(source)
            writers.stop()
        if self._copy is not None:
            _execute(source, DATABASE, "UPDATE customers SET loyalty = points WHERE id <= 1000")
        self._say(
            f"The writers stop after {writers.committed:,} transactions. The job catches up and ends (trigger: once)"
        )
        with self._job("--set", "trigger=once") as job:
            job.wait(RUN_TIMEOUT_SECONDS)
        self._tally.update()
        if self._copy is not None:
            self._damage_and_repair(self._copy)
        self._say("Comparing source and copy: every column of every row")
        comparisons = compare(source, self._tables, rows_of_copy)
        self._report(comparisons, kill, writers, seconds=time.monotonic() - started)
        return all(comparison.same for comparison in comparisons)

    def _set_up(self) -> tuple[Server, Rows]:
        name = SOURCES[self._source]
        self._say(f"Starting a private {name} server and filling it with a shop")
        source = self._stack.enter_context(start_server(self._source))
        rows = load_shop(source, self._rows)
        rows_of_copy, sink, target = self._target()
        self._environment["SHOP_URL"] = f"{source.url}{DATABASE}"
        split_rows = max(100, rows // SPLITS_WANTED)
        self._job_file.write_text(JOB_FILE.format(schema=self._shop.schema, split_rows=split_rows, sink=sink))
        tables = len(self._shop.tables)
        print(f"   {name} {source.version}: {rows:,} rows in {tables} tables. The copy is written to {target}")
        return source, rows_of_copy

    def _target(self) -> tuple[Rows, str, str]:
        """Returns a function that reads the copy, the job file's sink, and the sink's name for people."""
        if self._sink == "files":
            return rows_in_files(self._folder / "copy", self._shop.schema), FILES, "Parquet files"
        if self._sink == "delta":
            return rows_in_delta(self._folder / "copy", self._shop.schema), DELTA, "Delta tables"
        kind = self._sink.removeprefix("mirror-")
        server = self._stack.enter_context(start_server(kind))
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {COPY}")
        self._environment["COPY_URL"] = f"{server.url}{COPY}"
        self._copy = server
        return rows_in_database(server, COPY), MIRROR, f"{SOURCES[kind]} {server.version}"

    def _run_and_kill(self) -> Kill:
        self._say(f"Starting {WRITERS} writers, and the job: tidemark run shop.yaml")
        with self._job() as job:
            for done, rows, published in self._watch(job):
                if done and published >= KILL_WHEN_READ:
                    kill = Kill(job.kill(), done, rows, published)
                    break
            else:
                raise JobFailedError("the snapshot ended before the job could be killed: set a larger ROWS")
        print(
            f"   SIGKILL to {kill.processes} processes (driver, JVM, workers). {kill.splits_done} splits were copied,"
            f"\n   {kill.splits_published} more were read in the running epoch"
        )
        return kill

    def _watch(self, job: JobProcess) -> Iterator[tuple[int, int, int]]:
        """Yields, until the snapshot ends: copied splits, copied rows, and published splits of the running epoch."""
        while True:
            job.raise_if_ended()
            epochs = self._checkpoint.plan_epochs()
            if epochs:
                record = self._checkpoint.plan(epochs[-1])
                if record.plan.phase is not Phase.SNAPSHOT:
                    return
                published = len(published_files(self._checkpoint.store, record.plan.epoch))
                tables = record.state.tables
                yield sum(t.done_splits for t in tables), sum(t.done_rows for t in tables), published
            time.sleep(POLL_SECONDS)

    def _resume_and_follow(self, source: Server) -> None:
        self._say("Running the same command again: the job resumes, then follows the changes")
        with self._job() as job:
            for _ in self._watch(job):
                self._tally.update()
            until = None
            while until is None or time.monotonic() < until:
                job.raise_if_ended()
                self._tally.update()
                if until is None and any(phase is Phase.STREAM for phase, _ in self._tally.reports.values()):
                    until = time.monotonic() + FOLLOW_SECONDS
                    if self._copy is not None:
                        self._alter(source)
                time.sleep(POLL_SECONDS * 10)
            job.ask_to_stop()
            job.wait(RUN_TIMEOUT_SECONDS, expected=130)

    def _alter(self, source: Server) -> None:
        self._say("While the job follows: the table customers gets a column, and the table coupons is created")
        _execute(source, DATABASE, "ALTER TABLE customers ADD COLUMN loyalty INT")
        _execute(source, DATABASE, f"CREATE TABLE {COUPONS.name} ({COUPONS.columns})")
        _execute(
            source,
            DATABASE,
            f"INSERT INTO {COUPONS.name} WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 500) "
            f"SELECT {COUPONS.select} FROM n",
        )
        self._tables.append(COUPONS)

    def _damage_and_repair(self, copy: Server) -> None:
        self._say(
            "Somebody changes rows of the copy. tidemark reconcile shop.yaml --repair finds them, and asks for their keys"
        )
        _execute(copy, COPY, f"DELETE FROM {COUPONS.name} WHERE code = 'coupon 7'")
        _execute(copy, COPY, f"UPDATE {COUPONS.name} SET discount = 99 WHERE code = 'coupon 8'")
        arguments = ["reconcile", str(self._job_file), "--table", f"{self._shop.schema}.{COUPONS.name}", "--repair"]
        with JobProcess(arguments, self._folder / "stderr", self._environment) as process:
            process.wait(RUN_TIMEOUT_SECONDS, expected=ROWS_DIFFER)
        print("   2 wrong rows: exit code 8. The next run reads these keys again")
        with self._job("--set", "trigger=once") as job:
            job.wait(RUN_TIMEOUT_SECONDS)

    def _job(self, *arguments: str) -> JobProcess:
        return JobProcess(["run", str(self._job_file), *arguments], self._folder / "stderr", self._environment)

    def _say(self, text: str) -> None:
        self._steps += 1
        bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        print(f"\n{bold}{self._steps}  {text}{plain}", flush=True)

    def _report(self, comparisons: list[Comparison], kill: Kill, writers: Writers, *, seconds: float) -> None:
        tables = self._checkpoint.plan(self._checkpoint.plan_epochs()[-1]).state.tables
        print(
            f"\n   {'table':<14}{'rows in source':>16}{'rows in copy':>14}{'missing':>9}{'surplus':>9}{'repeated':>10}"
        )
        for c in comparisons:
            print(
                f"   {c.table:<14}{c.source_rows:>16,}{c.copy_rows:>14,}{c.missing:>9,}{c.surplus:>9,}{c.repeated:>10,}"
            )
            for example in c.examples:
                print(f"      {example}")
        tally = self._tally
        facts = {
            "rows read": f"{sum(t.done_rows for t in tables):,} in {sum(t.done_splits for t in tables)} splits",
            "killed": f"after {kill.splits_done} splits; {kill.splits_published} more were read, and are not read again",
            "writers": f"{writers.committed:,} transactions, {writers.rolled_back:,} more rolled back",
            "changes from the log": f"{tally.changes:,}",
            "gaps filled": f"{tally.gap_changes:,} changes made after their split was read (phases snapshot, catch_up)",
            "already in the rows": f"{tally.contained_changes:,} changes of the log, dropped by the gap filter, or read later",
            "seconds": f"{seconds:.0f}",
        }
        print()
        for name, value in facts.items():
            print(f"   {name:<22}{value}")
        same = all(comparison.same for comparison in comparisons)
        print(
            f"\n   {'The copy is identical to the source.' if same else 'THE COPY DIFFERS FROM THE SOURCE.'}",
            flush=True,
        )


def _execute(server: Server, database: str, statement: str) -> None:
    with contextlib.closing(server.connect(database)) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def _usage(text: str) -> int:
    print(text, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
