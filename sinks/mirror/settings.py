"""The needs and the identity of a job file's mirror."""

from tidemark.conf.sink import MirrorSink as MirrorSettings
from tidemark.sinks.audit import audit_settings
from tidemark.sinks.sink import SinkNeeds, renames
from tidemark.state.sink_identity import SinkIdentity, SinkSetting


def mirror_needs(settings: MirrorSettings) -> SinkNeeds:
    keyless = settings.keyless == "append"
    return SinkNeeds(f"mirror {settings.url}", needs_key=True, appends_keyless=keyless, holds="rows")


def mirror_identity(settings: MirrorSettings) -> SinkIdentity:
    """Returns the sink's identity, without account and password, which may change."""
    url = settings.url
    kind = "mysql" if url.kind == "mariadb" else url.kind  # MariaDB's server takes both spellings
    location = f"{kind}://{url.host.lower()}:{url.port}/{url.database or ''}"
    return SinkIdentity(
        (
            SinkSetting("sink.type", "mirror"),
            SinkSetting("sink.table", str(settings.table)),
            *renames(settings.copies),
            *audit_settings(settings.audit_columns),
        ),
        SinkSetting("sink.url", location),
    )
