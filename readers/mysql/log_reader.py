"""Reads a range of a MySQL or MariaDB log as Arrow batches: the module's public face."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from readers.log_batch import LogBatch
from readers.mysql.log_connection import LogSource
from readers.mysql.log_reading import Reading
from readers.mysql.log_state import Flush, LogState, ReadOptions
from state.gtid import GtidSet
from state.log_range import LogRange, LogReport
from state.position import BinlogPosition, binlog_position
from state.table import TableId, TableSchema


@dataclass(slots=True)
class LogReader:
    """Reads the tables of `schemas`. One connection at a time; `reconnects` counts those after a broken one.

    `options`: sizes of buffers, and whether zero dates are nulls.
    """

    source: LogSource
    schemas: Mapping[TableId, TableSchema]
    options: ReadOptions = field(default_factory=ReadOptions)
    reconnects: int = 0
    _report: LogReport | None = None

    def read(
        self,
        log_range: LogRange,
        *,
        tables: Collection[TableId] | None = None,
        skip: GtidSet | None = None,
        replay: bool = False,
    ) -> Iterator[LogBatch]:
        """The changes of `tables` (all, if None) in the range, in the log's order table by table.

        Transactions whose GTID is in `skip` are left out. `replay`: the range completes a split's rows, so a DDL on its
        table, or the end of an XA transaction that began before, raises SplitChangedError. When all is handed out
        `report` is there. Raises TidemarkError: LogPositionLostError, SchemaChangedError, UnknownLogEventError,
        DamagedLogError, SourceUnavailableError, ….
        """
        wanted = {t: s for t, s in self.schemas.items() if tables is None or t in tables}
        options = replace(self.options, skip=skip, replay=replay)
        for flush in self.flushes(log_range, wanted, options):
            yield from flush.batches

    def flushes(
        self, log_range: LogRange, wanted: Mapping[TableId, TableSchema], options: ReadOptions
    ) -> Iterator[Flush]:
        """The same, with the transactions that were met."""
        self._report = None
        log = LogState(self.source, log_range, wanted, options)
        reading = Reading(log)
        try:
            yield from reading.run()
        finally:
            self.reconnects += reading.reconnects
        progress = log.progress
        gtids = None if progress.gtids is None else str(progress.gtids)
        self._report = LogReport(
            end=replace(progress.position, gtids=gtids, begun=log.begun.get(progress.position.file)),
            prepared=tuple(sorted(progress.prepared.values(), key=lambda xa: xa.start.order)),
            emitted_changes=progress.changes,
            filtered_changes=0,
            transactions=progress.transactions,
            end_timestamp_us=progress.timestamp_us,
            reconnects=reading.reconnects,
        )

    @property
    def end(self) -> BinlogPosition:
        """The report's."""
        return binlog_position(self.report.end)

    @property
    def report(self) -> LogReport:
        """Of the last range. Raises RuntimeError before it was read to its end."""
        if self._report is None:
            raise RuntimeError("the range was not read to its end")
        return self._report
