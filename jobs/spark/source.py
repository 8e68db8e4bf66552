"""The Spark data source `tidemark`, for users' own queries: one table with its typed columns and the changelog columns.

Its options are `url`, `table` and `checkpoint`, and any other key of the job file, with dots. `tidemark run` does not use it.

Spark creates readers in several processes: the planner keeps one for the life of the query, and each batch creates another
one whose `read` is pickled to the executors. So a reader does nothing until it is called, and a partition contains
everything that it needs.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from tidemark.jobs.epoch.read_parts import PartTask
    from tidemark.jobs.epoch.run_context import RunContext
    from tidemark.jobs.spark.stream_source import DirectPlanner

# Spark imports this module in five processes. Most need nothing of ours: our modules are imported where they are used.


class PartPartition(InputPartition):
    """One Spark task: some splits or the epoch's log range."""

    def __init__(self, task: "PartTask") -> None:
        super().__init__(task)
        self.task = task


class TidemarkStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{"epoch": n}`. The plan in the checkpoint fixes the content of epoch n."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._job: tuple[RunContext, DirectPlanner] | None = None
        self._held: ExitStack | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": {}, "_job": None, "_held": None}

    def _opened(self) -> "tuple[RunContext, DirectPlanner]":
        """The job is held from the first call until this process ends."""
        if self._job is None:
            from tidemark.jobs.spark.stream_source import open_options

            self._held = ExitStack()
            self._job = self._held.enter_context(open_options(self._options))
        return self._job

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 -- Spark's name
        return {"epoch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._opened()[1].end_at_log_end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Returns the next epoch, one at a time, whatever the limit. `start` is committed."""
        return {"epoch": self._opened()[1].next_epoch(start["epoch"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        if start["epoch"] == end["epoch"]:
            return []
        from tidemark.jobs.epoch.read_parts import tasks_of

        return [PartPartition(task) for task in tasks_of(self._opened()[0], end["epoch"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from tidemark.jobs.epoch.read_parts import read_part
        from tidemark.state.typed_rows import typed_batches

        assert isinstance(partition, PartPartition)
        return typed_batches(read_part(partition.task))


class TidemarkDataSource(DataSource):
    """Register it once: `spark.dataSource.register(TidemarkDataSource)`."""

    @classmethod
    def name(cls) -> str:
        return "tidemark"

    def schema(self) -> StructType:
        from tidemark.jobs.spark.stream_source import table_schema
        from tidemark.state.typed_rows import typed_schema

        return from_arrow_schema(typed_schema(table_schema(self.options)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return TidemarkStreamReader(self.options)
