"""The job file's JSON schema, for editors: it completes and describes keys while a file is written. `tidemark validate` checks
more than a schema can say."""

from collections.abc import Iterator, Sequence
from typing import Any

from tidemark.conf.model import JobFile
from tidemark.conf.section import Section, section_in, sections_in_union

_PLACEHOLDER = {"type": "string", "pattern": r"\$\{|^file:"}
"""A value that is filled in when the file is loaded, where the schema wants something else than text."""


def json_schema() -> dict[str, Any]:
    """Returns the schema of a job file as it is written: with units, before variables are filled in."""
    schema = JobFile.model_json_schema()
    definitions = schema.pop("$defs")
    for section in _sections(JobFile):
        own = schema if section is JobFile else definitions[section.__name__]
        for key, field in section.model_fields.items():
            own["properties"][key] = _of_key(own["properties"][key], _default_of(section, key))
            inner = section_in(field.annotation)
            if inner is not None and not field.is_required():
                own["properties"][key] = _or_words(own["properties"][key], inner.words)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Tidemark job file",
        "$defs": definitions,
    }


def _sections(root: type[Section]) -> Iterator[type[Section]]:
    """Yields a section and all below it, each once."""
    found, open_ = dict[type[Section], None](), [root]
    while open_:
        section = open_.pop()
        if section in found:
            continue
        found[section] = None
        yield section
        for field in section.model_fields.values():
            inner = section_in(field.annotation)
            open_ += [*([] if inner is None else [inner]), *sections_in_union(field.annotation)]


def _default_of(section: type[Section], key: str) -> Any:
    """The default as the file would have it, None if there is none to show."""
    field = section.model_fields[key]
    if field.is_required() or isinstance(field.default, Section):
        return None
    value = section.model_construct().model_dump(mode="json", include={key}, warnings=False).get(key)
    return None if value in ({}, []) else value


def _of_key(schema: dict[str, Any], default: Any) -> dict[str, Any]:
    found = _with_placeholders({key: value for key, value in schema.items() if key not in {"title", "default"}})
    return found if default is None else {**found, "default": default}


def _with_placeholders(schema: dict[str, Any]) -> dict[str, Any]:
    """Lets numbers, truth values and words of a list also be written as `${NAME}`."""
    about = {key: value for key, value in schema.items() if key in {"description", "examples"}}
    rest = {key: value for key, value in schema.items() if key not in about}
    if rest.get("type") in ("integer", "number", "boolean") or "enum" in rest:
        return {**about, "anyOf": [rest, _PLACEHOLDER]}
    if "anyOf" in rest:
        return {**about, **rest, "anyOf": [*rest["anyOf"], _PLACEHOLDER]}
    return schema


def _or_words(schema: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """The schema, or an empty value, which means the section's defaults, or one of its words."""
    about = {key: value for key, value in schema.items() if key in {"description", "examples"}}
    rest = {key: value for key, value in schema.items() if key not in about}
    either: list[dict[str, Any]] = [rest, {"type": "null"}]
    return {**about, "anyOf": [*either, {"enum": list(words)}, _PLACEHOLDER] if words else either}
