"""The registry of sinks: which module writes the kind of target that a job file's `sink.type` names, and what it needs."""

from typing import TYPE_CHECKING

from typing_extensions import assert_never

from tidemark.conf.model import JobFile
from tidemark.conf.sink import ConsoleSink as ConsoleSettings
from tidemark.conf.sink import DeltaSink as DeltaSettings
from tidemark.conf.sink import FilesSink as FilesSettings
from tidemark.conf.sink import MirrorSink as MirrorSettings
from tidemark.conf.sink import Sink as SinkSettings
from tidemark.readers.snapshot.published_file import PublishedFormat
from tidemark.sinks.delta.settings import delta_identity, delta_needs
from tidemark.sinks.files.settings import files_identity, files_needs
from tidemark.sinks.mirror.settings import mirror_identity, mirror_needs
from tidemark.sinks.sink import EpochSink, PartSink, SinkNeeds
from tidemark.state.change_batch import meta_fields
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import JobFileError
from tidemark.state.sink_identity import SinkIdentity, SinkSetting
from tidemark.state.table import TableSchema

if TYPE_CHECKING:
    from tidemark.sinks.delta.sink import DeltaSink
    from tidemark.sinks.files.sink import FilesSink
    from tidemark.sinks.mirror.sink import MirrorSink


def sink_needs(settings: SinkSettings) -> SinkNeeds:
    """Loads no library of any sink."""
    match settings:
        case MirrorSettings():
            return mirror_needs(settings)
        case FilesSettings():
            return files_needs(settings)
        case DeltaSettings():
            return delta_needs(settings)
        case ConsoleSettings():
            return SinkNeeds("console", takes_lists=True)
        case _:
            assert_never(settings)


def published_format(job: JobFile, output: TableSchema) -> PublishedFormat:
    """Returns the format in which splits of a table are published. Spark reads Parquet files, unless it would take a column of
    the table for one that the file has besides the table's. `output`: as the sink gets it."""
    needs = sink_needs(job.sink)
    if needs.spark is None:
        return needs.published_format
    added = {field.name.casefold() for field in meta_fields(output)}
    is_ambiguous = any(column.name.casefold() in added for column in output.captured)
    return "arrow" if is_ambiguous else needs.published_format


def sink_identity(settings: SinkSettings) -> SinkIdentity:
    """Loads no library of any sink."""
    match settings:
        case MirrorSettings():
            return mirror_identity(settings)
        case FilesSettings():
            return files_identity(settings)
        case DeltaSettings():
            return delta_identity(settings)
        case ConsoleSettings():
            return SinkIdentity((SinkSetting("sink.type", "console"),), None)
        case _:
            assert_never(settings)


def comparable_sink(job: JobFile) -> "MirrorSink | FilesSink | DeltaSink":
    """Returns the job's sink if its copies can be compared with the source. Raises JobFileError for other kinds."""
    match job.sink:
        case MirrorSettings() as settings:
            from tidemark.sinks.mirror.sink import MirrorSink

            parallelism = job.log.apply_parallelism
            return MirrorSink.of(settings, job.source.url.kind, job.reconnect, parallelism=parallelism)
        case FilesSettings() as settings:
            from tidemark.sinks.files.sink import FilesSink

            store, merges = Checkpoint.at(job.checkpoint).store, settings.merge_small_files
            return FilesSink.of(settings.path, settings.format, store, merge_small_files=merges, copies=settings.copies)
        case DeltaSettings() as settings:
            from tidemark.jobs.spark.session import open_session
            from tidemark.sinks.delta.sink import DeltaSink

            store, needs = Checkpoint.at(job.checkpoint).store, delta_needs(settings).spark
            return DeltaSink.of(settings, store, lambda: open_session(job, needs))
        case ConsoleSettings():
            raise JobFileError(f"Copies of sink {job.sink.type} can't be compared.", "Compare a job with another sink.")
        case _:
            assert_never(job.sink)


def make_sink(job: JobFile) -> PartSink | EpochSink:
    """Loads the libraries of this job's kind of sink, and not those of the others."""
    match job.sink:
        case MirrorSettings() | FilesSettings() | DeltaSettings():
            return comparable_sink(job)
        case ConsoleSettings():
            from tidemark.sinks.console import ConsoleSink

            return ConsoleSink()
        case _:
            assert_never(job.sink)
