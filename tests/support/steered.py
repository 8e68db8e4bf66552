"""A job that signals steer."""

from pathlib import Path
from typing import Any

from tests.support.epochs import Notes, run_epochs
from tests.support.history import assert_copied, assert_history, read_history
from tests.support.jobs import source_of, write_job
from tests.support.servers import Database
from tests.support.workload import KEYS, UPDATE_ALL, Uids, create_tables
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.job_state import JobState


class Case:
    """A job of three tables into files."""

    def __init__(
        self, database: Database, folder: Path, *, rows: int = 60, uids: Uids | None = None, **changes: Any
    ) -> None:
        self.database, self.folder = database, folder
        create_tables(database, rows=rows, uids=Uids() if uids is None else uids)
        job = {
            "source": source_of(database, on_table_error="park"),
            "checkpoint": str(folder / "checkpoint"),
            "snapshot": {"split_rows": 20, "parallelism": 2},
            "sink": {"type": "files", "path": str(folder / "out")},
        }
        self.path = write_job(folder, **(job | changes))
        self.job = load_job_file(self.path)
        self.customers = TableName(database.schema, "customers")

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.at(str(self.folder / "checkpoint"))

    @property
    def state(self) -> JobState:
        state = self.checkpoint.job_state()
        assert state is not None
        return state

    def run(self, *overrides: str, at_most: int | None = None) -> Notes:
        run_epochs(self.path, *overrides, at_most=at_most, notes=(notes := Notes()))
        return notes

    def change(self) -> None:
        self.database.execute(*UPDATE_ALL, "DELETE FROM order_lines WHERE line_no = 2 AND order_id % 5 = 0")

    def assert_copied(self) -> None:
        assert_copied(self.folder / "out", self.database)

    def assert_table_copied(self, table: str) -> None:
        key = KEYS[table]
        rows = self.database.query(f"SELECT uid, version, {', '.join(key)} FROM {table}")
        history = read_history(self.folder / "out", self.database.schema, table)
        assert_history(history, {row[2:]: row[:2] for row in rows}, name=table, key=key)
