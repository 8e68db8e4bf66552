"""Printing the findings of the source's and the sink's checks, for `validate` and `plan`."""

from tidemark.conf.model import JobFile
from tidemark.conf.redaction import redact
from tidemark.jobs.sinks import make_sink, sink_identity
from tidemark.readers.findings import raise_refusals
from tidemark.readers.projection.settings import projections_of
from tidemark.readers.source import FoundSource
from tidemark.sinks.sink import JobIdentity
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import SinkError
from tidemark.state.projection import outputs_of
from tidemark.state.table import TableId, TableSchema

SinkProblems = list[tuple[str, str]]
"""Problem and remedy of everything that the sink refuses."""


def print_source_findings(found: FoundSource) -> None:
    for finding in found.findings:
        where = ".".join(str(part) for part in (finding.table, finding.column) if part is not None)
        print(redact(f"{finding.severity}: {where + ': ' if where else ''}{finding.message} Remedy: {finding.remedy}"))


def print_sink_findings(job: JobFile, found: FoundSource) -> SinkProblems:
    """Prints what the sink would create and what it refuses; returns the latter."""
    checkpoint = Checkpoint.at(job.checkpoint)
    state, known = checkpoint.job_state(), checkpoint.sink_identity()
    identity = None if state is None else JobIdentity(state.job_uuid, state.job_name)
    written = frozenset[TableId]() if state is None else checkpoint.written_tables(state)
    if known is not None:
        known.require_same(sink_identity(job.sink))
    problems = []
    for finding in make_sink(job).check(sink_tables(job, found), identity, written):
        where = "" if finding.table is None else f"{finding.table}: "
        if finding.remedy is None:
            print(redact(f"sink: {where}{finding.text}"))
        else:
            problems.append((f"{where}{finding.text}", finding.remedy))
            print(redact(f"refuse: sink: {where}{finding.text} Remedy: {finding.remedy}"))
    return problems


def raise_problems(found: FoundSource, problems: SinkProblems) -> None:
    """Raises SourceNotUsableError with all refusals of the source, else SinkError with all of the sink."""
    raise_refusals(found.findings)
    if problems:
        raise SinkError(" ".join(text for text, _ in problems), " ".join(remedy for _, remedy in problems))


def sink_tables(job: JobFile, found: FoundSource) -> tuple[TableSchema, ...]:
    """The tables as the sink receives them; refused tables have their source columns."""
    refused = {finding.table for finding in found.findings if finding.severity == "refuse"}
    projections = projections_of(job, [schema for schema in found.schemas if schema.table not in refused])
    return outputs_of(found.schemas, projections)
