"""Templates of the pages. Every text that they insert is escaped and redacted."""

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tidemark.conf.redaction import redact


def rendered(template: str, **facts: Any) -> str:
    """The page that a template of this package makes of `facts`."""
    environment = Environment(
        loader=PackageLoader("tidemark.jobs.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=redacted,
    )
    return environment.get_template(template).render(**facts)


def redacted(value: Any) -> Any:
    """Redacts a text. Markup is our own and stays, as everything that is no text does."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else redact(value)
