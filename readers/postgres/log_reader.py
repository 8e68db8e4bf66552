"""Reads a range of a PostgreSQL log as Arrow batches: the module's public face."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from readers.log_batch import LogBatch
from readers.postgres import log_arrays as w
from readers.postgres.log_reading import Reading, ReadOptions
from readers.postgres.log_source import LogSource
from state.errors import LogPositionLostError
from state.log_range import LogRange, LogReport
from state.position import WalPosition, wal_position
from state.table import TableId, TableSchema


@dataclass(slots=True)
class LogReader:
    """Reads the tables of `schemas`. One connection at a time; `reconnects` counts those after a broken one."""

    source: LogSource
    schemas: Mapping[TableId, TableSchema]
    options: ReadOptions = field(default_factory=ReadOptions)
    reconnects: int = 0
    _report: LogReport | None = None

    def read(self, log_range: LogRange, *, tables: Collection[TableId] | None = None) -> Iterator[LogBatch]:
        """The changes of `tables` (all, if None) whose transactions committed in [start, stop), in the log's order table
        by table; `rows` have `batch_schema`.

        When all is handed out `report` is there. Raises TidemarkError: LogPositionLostError, SchemaChangedError,
        UnknownLogEventError, DamagedLogError, SourceUnavailableError, ….
        """
        self._report = None
        start, stop = wal_position(log_range.start), wal_position(log_range.stop)
        if start.lsn > stop.lsn:
            raise LogPositionLostError(
                f"The job has read the log up to {start}, but now it ends at {stop}.",
                "The source was restored or replaced: start the job anew with another checkpoint directory and an "
                "empty target.",
            )
        wanted = {t: s for t, s in self.schemas.items() if tables is None or t in tables}
        reading = Reading(self.source, start, stop, wanted, self.options)
        try:
            yield from reading.run()
        finally:
            self.reconnects += reading.reconnects
        done = int(reading.state[w.DONE_COUNT])
        self._report = LogReport(
            end=WalPosition(stop.lsn),
            prepared=(),
            emitted_changes=reading.changes,
            filtered_changes=0,
            transactions=done,
            end_timestamp_us=int(reading.state[w.DONE_TIME]) if done else None,
            reconnects=reading.reconnects,
        )

    @property
    def report(self) -> LogReport:
        """Of the last range. Raises RuntimeError before it was read to its end."""
        if self._report is None:
            raise RuntimeError("the range was not read to its end")
        return self._report
