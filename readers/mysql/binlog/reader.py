"""Reads a range of a MySQL or MariaDB log as Arrow batches. The public entry to this package."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tidemark.readers.log.log_batch import LogBatch
from tidemark.readers.mysql.binlog.connection import LogSource
from tidemark.readers.mysql.binlog.reading import Reading
from tidemark.readers.mysql.binlog.reading_state import Flush, LogState, ReadOptions
from tidemark.state.gtid import GtidSet
from tidemark.state.log_range import LogRange, LogReport
from tidemark.state.position import BinlogPosition, binlog_position
from tidemark.state.table import TableId, TableSchema


@dataclass(slots=True)
class LogReader:
    """Reads changes of the tables in `schemas`, on one connection at a time. `reconnects` counts new connections after
    broken ones.
    """

    source: LogSource
    schemas: Mapping[TableId, TableSchema]
    options: ReadOptions = field(default_factory=ReadOptions)
    reconnects: int = 0
    _report: LogReport | None = None
    _reached: BinlogPosition | None = None

    def read(
        self,
        log_range: LogRange,
        *,
        tables: Collection[TableId] | None = None,
        skip: GtidSet | None = None,
        replay: bool = False,
    ) -> Iterator[LogBatch]:
        """The changes of `tables` (None: all) in the range. Each table's changes are in log order.

        Transactions whose GTID is in `skip` are left out. `replay`: the range completes a split's rows, so a DDL on its
        table, or the end of an XA transaction that was prepared before the range, raises SplitChangedError. After the
        last batch `report` is set. Raises TidemarkError: LogPositionLostError, SchemaChangedError, UnknownLogEventError,
        DamagedLogError, SourceUnavailableError, ….
        """
        wanted = {t: s for t, s in self.schemas.items() if tables is None or t in tables}
        options = replace(self.options, skip=skip, replay=replay)
        for flush in self.flushes(log_range, wanted, options):
            yield from flush.batches

    def flushes(
        self, log_range: LogRange, wanted: Mapping[TableId, TableSchema], options: ReadOptions
    ) -> Iterator[Flush]:
        """Reads as `read` does, and also returns the transactions of the range."""
        self._report = None
        log = LogState(self.source, log_range, wanted, options)
        reading = Reading(log)
        try:
            yield from reading.run()
        finally:
            self.reconnects += reading.reconnects
            self._reached = log.progress.position
        progress = log.progress
        state = progress.gtid_state
        self._report = LogReport(
            end=replace(
                progress.position,
                gtids=None if progress.gtids is None else str(progress.gtids),
                begun=log.begun.get(progress.position.file),
                gtid_state=None if state is None else state.state(),
                last_at=None if progress.times else log.start.last_at,
                unlogged=log.start.unlogged,
                times=progress.times.text(),
            ),
            prepared=tuple(sorted(progress.prepared.values(), key=lambda xa: xa.start.order)),
            emitted_changes=progress.changes,
            filtered_changes=0,
            transactions=progress.transactions,
            end_timestamp_us=progress.timestamp_us,
            reconnects=reading.reconnects,
        )

    @property
    def end(self) -> BinlogPosition:
        """The end position of the last range. Errors as `report`."""
        return binlog_position(self.report.end)

    @property
    def reached(self) -> BinlogPosition:
        """The position up to which all was returned, also if an error ended the last reading. File and offset only."""
        assert self._reached is not None, "something was read"
        return BinlogPosition(self._reached.file, self._reached.pos)

    @property
    def report(self) -> LogReport:
        """The report of the last range. Raises RuntimeError until the range was read to its end."""
        if self._report is None:
            raise RuntimeError("the range was not read to its end")
        return self._report
