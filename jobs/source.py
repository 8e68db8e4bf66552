"""The Spark data source `tidemark`.

Two shapes, one engine. For the job runner, option `run` names the run's context file and rows are change batches
(state/change_batch.py, TRANSPORT). For everybody else, options `url`, `table` and `checkpoint` (and any other key of the
job file, with dots) give one table with its own typed columns and the changelog columns.

Spark makes instances in several processes: the planner keeps one for the query's life; each batch makes another one whose
`read` is pickled to the executors. So a reader does nothing until it is called, and a partition carries all it needs.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from state.change_batch import TRANSPORT, to_transport

if TYPE_CHECKING:
    from jobs.context import RunContext
    from jobs.planner import Planner
    from jobs.read_parts import PartTask

# Spark imports this module in five processes, most of which need nothing of ours: the engine is imported where it is used.


class PartPartition(InputPartition):
    """One Spark task: some splits, or the epoch's log range."""

    def __init__(self, task: "PartTask") -> None:
        super().__init__(task)
        self.task = task


class TidemarkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"epoch": n}`; epoch n's content is fixed by its plan in the checkpoint."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._typed = "run" not in options
        self._context: RunContext | None = None
        self._planner: Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": {}, "_typed": self._typed, "_context": None, "_planner": None}

    def _opened(self) -> "RunContext":
        from jobs.context import load_context
        from jobs.direct import context_of_options

        if self._context is None:
            self._context = context_of_options(self._options) if self._typed else load_context(self._options["run"])
        return self._context

    def _planning(self) -> "Planner":
        if self._planner is None:
            self._planner = self._opened().planner()
        return self._planner

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 -- Spark's name
        return {"epoch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planning().end_at_log_end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """One epoch at a time, whatever the limit; `start` is committed."""
        return {"epoch": self._planning().next_epoch(start["epoch"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if start["epoch"] == end["epoch"]:
            return []
        from jobs.read_parts import tasks_of

        return [PartPartition(task) for task in tasks_of(self._opened(), end["epoch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from jobs.direct import typed_batches
        from jobs.read_parts import read_part

        assert isinstance(partition, PartPartition)
        items = read_part(partition.task)
        if self._typed:
            return typed_batches(items)
        return (to_transport(item) for item in items)


class TidemarkDataSource(DataSource):
    """Register it once: `spark.dataSource.register(TidemarkDataSource)`."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> StructType:
        if "run" in self.options:
            return from_arrow_schema(TRANSPORT)
        from jobs.direct import table_schema, typed_schema

        return from_arrow_schema(typed_schema(table_schema(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TidemarkStreamReader(self.options)
