"""The job file's `checkpoints` section: how far back the job can go."""

from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.conf.quantities import DURATION_FORM, Duration, parse_duration
from tidemark.conf.section import Section, Written


def _read_duration(value: Any) -> Duration:
    return value if isinstance(value, Duration) else parse_duration(value)


class Checkpoints(Section):
    """How far back the job can go, by `tidemark checkpoints JOB.yaml rollback EPOCH` or because its target was set back."""

    keep: Annotated[
        Duration,
        PlainValidator(_read_duration),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"type": ["string", "integer"]}),
        Written(DURATION_FORM),
    ] = Field(
        Duration(600.0),
        description="How long consistent cuts are kept. The newest 100 are kept anyway, and some of the older ones. "
        "PostgreSQL: the log after them is kept, too, by at most two more replication slots, if the server has slots to "
        "spare. MySQL and MariaDB keep their logs by their own settings. 0: the newest 100 only, and no more slots.",
        examples=["10m"],
    )
