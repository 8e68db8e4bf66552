"""The Spark data source `tidemark`.

Two shapes, one engine. For the job runner, option `run` names the run's context file and rows are change batches
(state/change_batch.py, TRANSPORT). For everybody else, options `url`, `table` and `checkpoint` (and any other key of the
job file, with dots) give one table with its own typed columns and the changelog columns.

Spark makes instances in several processes: the planner keeps one for the query's life; each batch makes another one whose
`read` is pickled to the executors. So a reader does nothing until it is called, and a partition carries all it needs.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from state.change_batch import TRANSPORT, to_transport

if TYPE_CHECKING:
    from jobs.context import RunContext
    from jobs.direct import DirectPlanner
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
        self._job: tuple[RunContext, Planner | DirectPlanner] | None = None
        self._held: ExitStack | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": {}, "_typed": self._typed, "_job": None, "_held": None}

    def _opened(self) -> "tuple[RunContext, Planner | DirectPlanner]":
        """A direct query's job is held from here on until this process ends."""
        if self._job is None:
            if self._typed:
                from jobs.direct import open_options

                self._held = ExitStack()
                self._job = self._held.enter_context(open_options(self._options))
            else:
                from jobs.context import take_context

                context = take_context(self._options["run"])
                self._job = context, context.planner()
        return self._job

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 -- Spark's name
        return {"epoch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._opened()[1].end_at_log_end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """One epoch at a time, whatever the limit; `start` is committed."""
        return {"epoch": self._opened()[1].next_epoch(start["epoch"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if start["epoch"] == end["epoch"]:
            return []
        from jobs.read_parts import tasks_of

        return [PartPartition(task) for task in tasks_of(self._opened()[0], end["epoch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from jobs.read_parts import read_part
        from state.typed_rows import typed_batches

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
        from jobs.direct import table_schema
        from state.typed_rows import typed_schema

        return from_arrow_schema(typed_schema(table_schema(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TidemarkStreamReader(self.options)
