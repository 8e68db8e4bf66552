"""The job file's section `notify`: where failures are reported."""

import ipaddress
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.conf.redaction import Secret, remember_secret
from tidemark.conf.section import Section, Written, refuse

WEBHOOK_FORM = "a URL like https://host/path"
MIN_SECRET_PART_LENGTH = 12
"""Parts of the URL's path and query of this length or more are secrets of their own, if they are no plain word."""

Reason = Literal["failed", "parked"]


def _webhook(value: Any) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str):
        raise refuse(f"must be {WEBHOOK_FORM}")
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or re.search(r"[^\x21-\x7e]", value):
        raise refuse(f"must be {WEBHOOK_FORM}; other characters than ASCII's are percent-encoded")
    if "@" in parts.netloc:
        raise refuse("has a login, which is not sent; services take a secret in the path or in the query")
    for part in re.split(r"[/?&=]", f"{parts.path}?{parts.query}"):
        if len(part) >= MIN_SECRET_PART_LENGTH and re.search(r"[0-9A-Z]", part):
            remember_secret(part)
    return Secret(value)


def _each_once(reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    if len(set(reasons)) < len(reasons):
        raise refuse("names one of them twice")
    return reasons


class Notify(Section):
    """Reports problems to a service: posts the [event](monitoring.md#events) as JSON by HTTP. Nothing else is sent. The job
    never waits for the service while it runs. At its end it waits ten seconds at most.
    """

    webhook: Annotated[
        Secret,
        PlainValidator(_webhook),
        PlainSerializer(str, return_type=str),
        WithJsonSchema({"type": "string"}),
        Written(WEBHOOK_FORM),
    ] = Field(
        description="URL that takes the events. It is a secret: write it as `${NAME}` or `file:/run/secrets/x`. Redirects are "
        "not followed.",
        examples=["${ALERTS_URL}"],
    )
    on: Annotated[tuple[Reason, ...], AfterValidator(_each_once), Written("a list of failed, parked")] = Field(
        ("failed", "parked"),
        min_length=1,
        description="`failed`: a run has ended with an error: an exit code other than 0, 6, 10 and 130. `parked`: a table was "
        "parked, or is still parked at a start.",
        examples=[["failed"]],
    )

    @property
    def is_clear_text(self) -> bool:
        """True if others in the network can read what is sent."""
        parts = urlsplit(self.webhook.get_secret_value())
        if parts.scheme == "https" or parts.hostname == "localhost":
            return False
        try:
            return not ipaddress.ip_address(parts.hostname or "").is_loopback
        except ValueError:
            return True
