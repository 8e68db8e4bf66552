"""The public interface for reading a range of a PostgreSQL log as Arrow batches."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.readers.log.log_batch import LogBatch
from tidemark.readers.postgres.pgoutput import arrays as w
from tidemark.readers.postgres.pgoutput.reading import Reading, ReadOptions
from tidemark.readers.postgres.slot.log_source import LogSource
from tidemark.state.errors import LogPositionLostError
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.position import WalPosition, wal_position
from tidemark.state.remedies import START_OVER_NOW
from tidemark.state.table import TableId, TableSchema


@dataclass(slots=True)
class LogReader:
    """Reads the tables of `schemas`, over one connection at a time. `reconnects`: how often a broken one was replaced."""

    source: LogSource
    schemas: Mapping[TableId, TableSchema]
    options: ReadOptions = field(default_factory=ReadOptions)
    reconnects: int = 0
    _report: LogReport | None = None

    def read(self, log_range: LogRange, *, tables: Collection[TableId] | None = None) -> Iterator[LogBatch]:
        """Yields the changes of `tables` (None: all) that committed in [start, stop). Each table's changes are in the log's
        order; `rows` have `batch_schema`.

        `report` is set after the last batch. Raises TidemarkError: LogPositionLostError, SchemaChangedError,
        UnknownLogEventError, DamagedLogError, SourceUnavailableError, ….
        """
        self._report = None
        start, stop = wal_position(log_range.start), wal_position(log_range.stop)
        if start.lsn > stop.lsn:
            raise LogPositionLostError(
                f"The job has read the log up to {start}, but now it ends at {stop}: the source was restored or replaced.",
                START_OVER_NOW,
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
            last_commit=WalPosition(int(reading.state[w.DONE_LSN])) if done else None,
            reconnects=reading.reconnects,
        )

    @property
    def report(self) -> LogReport:
        """The report of the last range. Raises RuntimeError unless it was read to its end."""
        if self._report is None:
            raise RuntimeError("the range was not read to its end")
        return self._report
