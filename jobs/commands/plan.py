"""`tidemark plan`: a dry run."""

from tidemark.conf.model import JobFile
from tidemark.enumerator.pages import pages_per_split
from tidemark.enumerator.splitting import MAX_SPLIT_BYTES
from tidemark.jobs.commands.drawing import console, table_of
from tidemark.jobs.commands.findings import print_sink_findings, print_source_findings, raise_problems, sink_tables
from tidemark.jobs.sources import find_source
from tidemark.readers.projection.settings import lines_of
from tidemark.readers.source import FoundSource, ReadsPages
from tidemark.readers.statistics import TableStatistics
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.table import TableId, is_list


def plan(job: JobFile) -> None:
    """Prints tables, keys, watermark method, estimated splits, and what the sink would create. Raises as `validate`."""
    with find_source(job, Checkpoint.at(job.checkpoint).job_state()) as found:
        out = console()
        out.print(f"source    {job.source.url} · {found.name} · watermarks by {found.watermarks()}")
        count = job.snapshot.parallelism
        reading = f"{count} splits are read at the same time" if count > 1 else "splits are read one after the other"
        out.print(f"mode      {job.mode}, trigger {job.trigger} · {reading}")
        drawn = table_of(("table", "key", "split by", "columns", "rows (estimate)", "splits (estimate)"))
        outputs = sink_tables(job, found)
        for schema, output in zip(found.schemas, outputs, strict=True):
            statistics = found.statistics(schema.table)
            rows = statistics.row_estimate
            split_by, splits = _split_by(found, schema.table, statistics, job.snapshot.split_rows)
            drawn.add_row(
                str(schema.table),
                ", ".join(schema.key) or "none",
                split_by,
                str(len(output.captured)),
                "?" if rows is None else f"{rows:,}",
                "?" if splits is None else f"{splits:,}",
            )
        out.print(drawn)
        for line in lines_of(job):
            out.print(f"columns   {line}")
        for output in outputs:
            if lists := [
                f"{column.name} as {column.arrow_type}" for column in output.captured if is_list(column.arrow_type)
            ]:
                out.print(f"columns   {output.table}: {', '.join(lists)}")
        print_source_findings(found)
        problems = print_sink_findings(job, found)
    raise_problems(found, problems)


def _split_by(
    found: FoundSource, table: TableId, statistics: TableStatistics, split_rows: int
) -> tuple[str, int | None]:
    """The columns or the way by which the table is split, and the estimated number of splits."""
    if columns := found.split_columns[table]:
        return ", ".join(columns), _estimated_splits(statistics, split_rows)
    pages = found.pages(table) if isinstance(found, ReadsPages) else None
    splits = 1 if pages is None else -(-pages.page_count // pages_per_split(pages, split_rows))
    return ("pages", splits) if splits > 1 else ("whole table", 1)


def _estimated_splits(statistics: TableStatistics, split_rows: int) -> int | None:
    if statistics.row_estimate is None:
        return None
    rows = max(1, min(split_rows, MAX_SPLIT_BYTES // max(1, statistics.average_row_bytes or 1)))
    return statistics.row_estimate // rows + 1
