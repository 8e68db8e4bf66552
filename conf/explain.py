"""Turns pydantic's errors into problems: the key's path as written, its line, what is wrong, and what is allowed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tidemark.conf.problems import Problem, did_you_mean
from tidemark.conf.section import Section, form_of, form_of_annotation, section_in, sections_in_union, value_annotation
from tidemark.conf.yaml_tree import Mapping, Node, Path, Scalar, Sequence, node_at, place_of_path

MAX_SHOWN_LENGTH = 60
MIN_QUOTE_LENGTH = 4

_FORM_ERRORS = frozenset(
    {
        "string_type",
        "int_type",
        "int_from_float",
        "int_parsing",
        "float_type",
        "float_parsing",
        "bool_type",
        "tuple_type",
    }
    | {
        "mapping_type",
        "dict_type",
        "model_type",
        "model_attributes_type",
        "greater_than",
        "greater_than_equal",
        "less_than_equal",
    }
    | {"finite_number", "literal_error", "too_short"}
)


@dataclass(frozen=True, slots=True)
class _Target:
    """The subject of an error: the path as written, the form of its value, and the section whose keys are allowed there."""

    path: Path
    form: str
    section: type[Section] | None
    is_key: bool


def explain(error: ValidationError, model: type[Section], root: Node) -> list[Problem]:
    """Returns a problem for each of ``error``'s errors. ``root`` is the tree that ``model`` was validated from."""
    problems: list[Problem] = []
    errors = error.errors(include_url=False, include_input=False)
    for details in errors:
        if details["type"] == "contradictions":
            for path, text in details["ctx"]["found"]:
                problems.append(Problem(place_of_path(root, path), path, text))
        elif details["type"] != "too_short" or not _has_bad_items(details["loc"], errors):
            problems.append(_problem(details, model, root))
    return problems


def _has_bad_items(location: tuple[int | str, ...], errors: list[ErrorDetails]) -> bool:
    """Tells whether items of the list were refused. Pydantic then calls the list too short as well."""
    return any(other["loc"][:-1] == location for other in errors)


def _problem(details: ErrorDetails, model: type[Section], root: Node) -> Problem:
    target = _target(details["loc"], model, root)
    path, text, is_key = target.path, _text(details, target, model), target.is_key
    context: dict[str, Any] = details.get("ctx", {})
    if details["type"] == "refused" and context["key"]:
        path = (*path, context["key"])
        is_key = text.startswith("unknown key")
    if not is_key and (hidden := _quoted(text, target, root)):
        return Problem(place_of_path(root, path), path, f"must be {target.form}; found: the value of {hidden}")
    if text.startswith("must be") and not is_key and (found := _found(node_at(root, path), path)):
        must, _, advice = text.partition(". ")
        if details["type"] == "string_type":
            advice = "Text that looks like a number or truth value must be in quotes"
        text = ". ".join(filter(None, [f"{must}; found: {found}", _meant(details, target, found), advice]))
    return Problem(place_of_path(root, path, key=is_key), path, text)


def _quoted(text: str, target: _Target, root: Node) -> str:
    """Returns where the target's value, or a part of it, was taken from, if ``text`` quotes it and it was filled in; else
    nothing.

    Four characters in common count as a quote, whatever their case, unless the form that is asked for has them as well.
    A URL's errors never quote it (`parse_endpoint`).
    """
    if target.path[-1:] == ("url",):
        return ""
    for scalar in _scalars_below(node_at(root, target.path)):
        size = min(MIN_QUOTE_LENGTH, len(scalar.text))
        pieces = {scalar.text[i : i + size].lower() for i in range(len(scalar.text) - size + 1)}
        told = [piece for piece in pieces if piece in text.lower() and piece not in target.form.lower()]
        if scalar.taken_from is not None and size and told:
            return scalar.taken_from
    return ""


def _scalars_below(node: Node | None) -> Iterator[Scalar]:
    match node:
        case Scalar():
            yield node
        case Sequence():
            for item in node.items:
                yield from _scalars_below(item)
        case Mapping():
            for entry in node.entries.values():
                yield from _scalars_below(entry.value)
        case None:
            pass


def _text(details: ErrorDetails, target: _Target, model: type[Section]) -> str:
    kind = details["type"]
    context: dict[str, Any] = details.get("ctx", {})
    match kind:
        case "refused":
            return str(context["text"])
        case "value_error":
            return str(context["error"])
        case "extra_forbidden":
            return _unknown_key(target, model)
        case "missing":
            return f"is missing; it must be {target.form}"
        case _ if kind in _FORM_ERRORS:
            return f"must be {target.form}"
        case _:
            return details["msg"]


def _unknown_key(target: _Target, model: type[Section]) -> str:
    key, section = str(target.path[-1]), target.section
    if section is None:
        return "unknown key"
    if key in section.refused_keys:
        return section.refused_keys[key]
    known = keys_in_order(section)
    return f"unknown key.{did_you_mean(key, known) or _elsewhere(key, section, model)} Allowed here: {', '.join(known)}"


def _elsewhere(key: str, section: type[Section], model: type[Section]) -> str:
    """Returns where the file may have the key, if just one of its other sections has it."""
    sections = {name: inner for name, field in model.model_fields.items() if (inner := section_in(field.annotation))}
    places = [f"{name}.{key}" for name, inner in sections.items() if inner is not section and key in inner.model_fields]
    places += [key] if section is not model and key in model.model_fields else []
    unions = [sections_in_union(field.annotation) for field in model.model_fields.values()]
    places += [key for union in unions for inner in union if inner is not section and key in inner.model_fields]
    return f" It is {places[0]}." if len(places) == 1 else ""


def keys_in_order(section: type[Section]) -> list[str]:
    """Returns the keys in the reference's order: a sink's `type` first, its policies last."""
    return sorted(
        section.model_fields, key=lambda key: (key != "type", key.startswith("on_"), key == "on_schema_change")
    )


def _found(node: Node | None, path: Path) -> str:
    """Returns the value as written, or nothing if it may be secret, is missing or is long."""
    if not isinstance(node, Scalar) or path[-1] in ("url", "mask_key", "webhook") or path[:2] == ("spark", "conf"):
        return ""
    if node.taken_from is not None:
        return f"the value of {node.taken_from}"
    if len(node.text) > MAX_SHOWN_LENGTH or "://" in node.text:
        return ""
    return (node.text or "nothing") if node.plain else f'"{node.text}"'


def _meant(details: ErrorDetails, target: _Target, found: str) -> str:
    choices = details.get("ctx", {}).get("choices", ())
    if details["type"] == "literal_error":
        choices = target.form.split(" | ")
    return did_you_mean(found.strip('"'), list(choices)).strip()


def _target(location: tuple[int | str, ...], model: type[Section], root: Node) -> _Target:
    """Follows pydantic's location through the model. The location also has union tags and marks of mapping keys."""
    path: list[str | int] = []
    annotation: Any = model
    section: type[Section] | None = model
    form = "a section of keys"
    is_key = False
    for step in location:
        owner = section_in(annotation)
        union = _tagged(annotation, step)
        if step == "[key]":
            is_key = True
        elif owner is not None and isinstance(step, str):
            section, path = owner, [*path, step]
            field = owner.model_fields.get(step)
            annotation = None if field is None else field.annotation
            form, is_key = "" if field is None else form_of(field), field is None
        elif union is not None:
            annotation, section = union, union
        elif (inner := value_annotation(annotation)) is not None:
            annotation, path, form = inner, [*path, step], form_of_annotation(inner)
    return _Target(tuple(path), form, section, is_key)


def _tagged(annotation: Any, tag: int | str) -> type[Section] | None:
    """Returns the member of a discriminated union whose `type` is ``tag``."""
    return next((member for member in sections_in_union(annotation) if str(tag) in _types_of(member)), None)


def _types_of(member: type[Section]) -> list[str]:
    field = member.model_fields.get("type")
    return [] if field is None else form_of(field).split(" | ")
