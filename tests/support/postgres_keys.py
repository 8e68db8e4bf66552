"""A keyed table on a real PostgreSQL, split by PostgresKeys."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tests.support.postgres_values import array_of, otherwise_selected
from tests.support.servers import Database
from tidemark.conf.endpoint import parse_endpoint
from tidemark.readers.log.gap_filter import FinishedSplits
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.keys.key_columns import column_list, range_condition
from tidemark.readers.postgres.keys.split_keys import PostgresKeys
from tidemark.readers.postgres.session import SqlSession
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import Column, TableId, TableSchema


@dataclass
class KeyedTable:
    """Table `public.t`, whose key columns are c0, c1, …"""

    database: Database
    schema: TableSchema
    session: SqlSession

    def __post_init__(self) -> None:
        self.keys = PostgresKeys(self.session, {self.schema.table: self.schema})

    def bounds(self, rows: int) -> list[Bound]:
        return list(
            self.keys.next_bounds(
                self.schema.table, self.schema.key, after=None, until=None, rows=rows, count=1_000_000
            )
        )

    def pieces(self, bounds: Sequence[Bound]) -> list[list[str]]:
        """The rows (as text) that a SELECT finds in each range between the boundaries, the open ones included."""
        key = self.keys.key(self.schema.table, self.schema.key)
        edges = pairwise([None, *bounds, None])
        conditions = [range_condition(key.columns, KeyRange(a, b)) for a, b in edges]
        return [[row for (row,) in self.session.query(f"SELECT t::text FROM public.t WHERE {c}")] for c in conditions]

    def first_after(self, bound: Bound) -> str:
        """The first row (as text) at or after a boundary."""
        key = self.keys.key(self.schema.table, self.schema.key)
        condition = range_condition(key.columns, KeyRange(bound, None))
        order = column_list(key.columns)
        [(row,)] = self.session.query(f"SELECT t::text FROM {key.relation} WHERE {condition} ORDER BY {order} LIMIT 1")
        return str(row)

    def all_rows(self) -> tuple[list[str], pa.RecordBatch]:
        """Each row as text, and the keys as the readers deliver them."""
        selected = [otherwise_selected(column) for column in self.schema.columns]
        found = self.database.query(f"SELECT t::text, {', '.join(selected)} FROM public.t ORDER BY random()")
        columns = list(zip(*found, strict=True)) or [()] * (1 + len(selected))
        arrays = [array_of(column, texts) for column, texts in zip(self.schema.columns, columns[1:], strict=True)]
        return list(columns[0]), pa.RecordBatch.from_arrays(arrays, names=list(self.schema.key))

    def owners(self, rows: pa.RecordBatch, bounds: Sequence[Bound]) -> list[int]:
        boundaries = pa.array([bytes.fromhex(bound.encoded_key) for bound in bounds], pa.large_binary())
        finished_splits = FinishedSplits.of(boundaries, np.zeros(len(boundaries) + 1, np.int64), None)
        return self.keys.owners(self.schema, self.schema.key, rows, finished_splits).tolist()

    def check(self, bounds: Sequence[Bound]) -> list[int]:
        """Asserts that every row is in exactly one range, which owns it. Returns the ranges' row counts."""
        pieces = self.pieces(bounds)
        rows, keys = self.all_rows()
        found = dict(zip(rows, self.owners(keys, bounds), strict=True))
        assert found == {row: piece for piece, piece_rows in enumerate(pieces) for row in piece_rows}
        assert sum(map(len, pieces)) == len(rows)
        return [len(piece) for piece in pieces]


@contextlib.contextmanager
def keyed_table(database: Database, key: Sequence[tuple[str, str]]) -> Iterator[KeyedTable]:
    """Makes the table. `key`: SQL type (with COLLATE, if any) and canonical type of each column."""
    names = [f"c{i}" for i in range(len(key))]
    columns = [f"{name} {sql_type} NOT NULL" for name, (sql_type, _) in zip(names, key, strict=True)]
    primary_key = f"PRIMARY KEY ({', '.join(names)})"
    database.execute("DROP TABLE IF EXISTS public.t", f"CREATE TABLE public.t ({', '.join(columns)}, {primary_key})")
    schema = TableSchema(
        TableId("public", "t"),
        1,
        tuple(Column(name, sql, arrow, nullable=False) for name, (sql, arrow) in zip(names, key, strict=True)),
        tuple(names),
    )
    endpoint = parse_endpoint(database.url)
    session = SqlSession(lambda: connect(endpoint, None))
    try:
        yield KeyedTable(database, schema, session)
    finally:
        session.close()
