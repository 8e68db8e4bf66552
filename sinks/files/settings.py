"""The needs and the identity of a job file's files sink."""

from typing import Literal

from tidemark.conf.sink import FilesSink as FilesSettings
from tidemark.sinks.sink import SinkNeeds, folder_names
from tidemark.state.sink_identity import SinkIdentity, SinkSetting


def files_needs(settings: FilesSettings) -> SinkNeeds:
    """Returns the sink's needs. A split that is published as Parquet becomes a file of the copy unchanged."""
    published: Literal["arrow", "parquet"] = "parquet" if settings.format == "parquet" else "arrow"
    return SinkNeeds(f"files {settings.path}", published_format=published, takes_lists=True, holds="changes")


def files_identity(settings: FilesSettings) -> SinkIdentity:
    return SinkIdentity(
        (
            SinkSetting("sink.type", "files"),
            SinkSetting("sink.format", settings.format),
            *folder_names(settings.copies),
        ),
        SinkSetting("sink.path", settings.path),
    )
