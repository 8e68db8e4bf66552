"""A table on a real PostgreSQL and its split reader, for tests of snapshots."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.postgres_log import LoggedDatabase
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.postgres.server import read_identity
from tidemark.readers.postgres.snapshot.split_reader import ReadHooks, SnapshotSource, SplitReader
from tidemark.readers.snapshot.split_read import SplitRead
from tidemark.state.position import WalPosition, wal_position
from tidemark.state.split import KeyRange, Split
from tidemark.state.table import TableSchema
from tidemark.state.wal_snapshot import SnapshotWatermarks

Row = tuple[Any, ...]
WHOLE = KeyRange(None, None)
NO_ANCHOR = WalPosition(0)


@dataclass
class SnapshotTable:
    """Table `public.<name>` in its state when this is made."""

    source: LoggedDatabase
    name: str = "t"
    schema: TableSchema = field(init=False)
    settings: SnapshotSource = field(init=False)

    def __post_init__(self) -> None:
        self.schema = self.source.schema(self.name)
        with self.source.connected() as connection:
            identity = read_identity(connection)
        self.settings = SnapshotSource(parse_endpoint(self.source.database.url), None, identity, NO_ANCHOR)

    def reader(self, hooks: ReadHooks | None = None, **settings: Any) -> SplitReader:
        return SplitReader(replace(self.settings, **settings), hooks=hooks)

    def split(self, key_range: KeyRange = WHOLE) -> Split:
        return Split(1, self.schema.table, self.schema.version, self.schema.key, key_range)

    def read(self, hooks: ReadHooks | None = None, **settings: Any) -> SplitRead:
        with self.reader(hooks, **settings) as reader:
            return reader.read(self.split(), self.schema, NO_ANCHOR)

    def rows(self) -> list[Row]:
        """The rows that the source has now."""
        return sorted(self.source.query(f"SELECT * FROM public.{self.name}"))


def rows_of(rows: pa.Table) -> list[Row]:
    return sorted(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def covered(read: SplitRead, xids: Sequence[int]) -> list[bool]:
    """Whether the split's high contains these transactions, named as the log names them."""
    snapshot = wal_position(read.report.high).snapshot
    assert snapshot is not None
    watermarks = SnapshotWatermarks.of([snapshot])
    return watermarks.covered(np.zeros(len(xids), np.int64), np.array(xids, np.int64)).tolist()
