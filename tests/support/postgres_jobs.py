"""A job that follows one PostgreSQL table, without Spark, and its copy."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.epochs import Notes, run_epochs
from tests.support.history import read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.epoch.read_parts import read_part, tasks_of
from tidemark.jobs.epoch.run_context import RunContext
from tidemark.jobs.startup import open_job
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import TidemarkError

BY_NAME, ALL, IN_SCHEMA = "TABLE shop.t", "ALL TABLES", "TABLES IN SCHEMA shop"
Rows = dict[int, Any]


@dataclass(frozen=True)
class Job:
    """A job that has copied shop.t, whose rows are 1 to 5 with v = a."""

    database: Database
    path: Path

    def do(self, *statements: str) -> None:
        self.database.execute(*statements)

    def transact(self, *statements: str) -> None:
        with closing(self.database.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")

    def run(self, *overrides: str, at_most: int | None = None) -> list[str]:
        return run_epochs(self.path, *overrides, at_most=at_most)

    @contextmanager
    def running(self) -> Iterator[tuple[RunContext, int]]:
        """Starts a run before the test's changes. Yields it and the last committed epoch."""
        job = load_job_file(self.path)
        with open_job(job, Notes(), standby=True) as opened:
            context = RunContext(job, opened.held.server, opened.held.state)
            yield context, Checkpoint.at(job.checkpoint).committed_epoch()

    def stops(self, kind: type[TidemarkError], match: str) -> None:
        """Asserts that the job stops, also at the next start, and writes nothing of the epoch."""
        before = self.copied()
        for _ in range(2):
            with pytest.raises(kind, match=match) as caught:
                self.run()
            assert caught.value.exit_code in (3, 4)
        assert self.copied() == before

    def read(self, context: RunContext, epoch: int) -> None:
        """Reads what an epoch's plan says, without writing it."""
        for task in tasks_of(context, epoch):
            list(read_part(task))

    def copied(self) -> Rows:
        """The copy's rows: the last change of each key decides."""
        rows: Rows = {}
        if not (self.path.parent / "out" / "shop.t").exists():
            return rows
        history = read_history(self.path.parent / "out", "shop", "t").to_pylist()
        for change in sorted(history, key=lambda change: (change["_commit_version"], change["_seq"])):
            if change["_change_type"] == "truncate":
                rows.clear()
            elif change["_change_type"] == "delete":
                rows.pop(change["id"], None)
            elif change["_change_type"] != "update_preimage":
                rows[change["id"]] = change["v"]
        return rows

    def follows(self) -> None:
        """Runs the job, and asserts that the copy has the source's rows."""
        self.run()
        assert self.copied() == dict(self.database.query("SELECT id, v FROM shop.t"))


MakeJob = Callable[..., Job]


def make_job_in(
    database: Database,
    folder: Path,
    publication: str = BY_NAME,
    *,
    table: str = "id int PRIMARY KEY, v text",
    options: str = "WITH (publish_via_partition_root = true)",
    run: bool = True,
    **sections: Any,
) -> Job:
    """Makes shop.t, its publication and a job for it. `run`: also copies its rows. `sections`: of the job file."""
    database.execute(
        "CREATE SCHEMA shop",
        f"CREATE TABLE shop.t ({table})",
        "INSERT INTO shop.t (id, v) SELECT n, 'a' FROM generate_series(1, 5) AS n",
        f"CREATE PUBLICATION {database.name} FOR {publication} {options}",
    )
    path = write_job(
        folder,
        source=source_of(database, tables=["shop.t"]),
        snapshot={"split_rows": 1, "parallelism": 1},
        sink={"type": "files", "path": str(folder / "out")},
        **sections,
    )
    made = Job(database, path)
    if run:
        made.run()
    return made


@pytest.fixture
def make_job(postgres_source_database: Database, tmp_path: Path) -> MakeJob:
    return partial(make_job_in, postgres_source_database, tmp_path)
