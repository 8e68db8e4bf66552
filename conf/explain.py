"""Turns pydantic's errors into problems: the key's path as written, its line, what is wrong and what is allowed."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from conf.problems import Problem, did_you_mean
from conf.section import Section, form_of, form_of_annotation, section_in, sections_in_union, value_annotation
from conf.yaml_tree import Node, Path, Scalar, node_at, place_of_path

LONGEST_VALUE_SHOWN = 60

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
    """What an error is about: the path as written, what stands there, and the section whose keys are allowed there."""

    path: Path
    form: str
    section: type[Section] | None
    is_key: bool


def explain(error: ValidationError, model: type[Section], root: Node) -> list[Problem]:
    """A problem for each of ``error``'s errors. ``root`` is the tree that ``model`` was validated from."""
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
    """Pydantic calls a list too short when its items were refused: they are said already."""
    return any(other["loc"][:-1] == location for other in errors)


def _problem(details: ErrorDetails, model: type[Section], root: Node) -> Problem:
    target = _target(details["loc"], model, root)
    path, text, is_key = target.path, _text(details, target), target.is_key
    context: dict[str, Any] = details.get("ctx", {})
    if details["type"] == "refused" and context["key"]:
        path = (*path, context["key"])
        is_key = text.startswith("unknown key")
    if text.startswith("must be") and not is_key and (found := _found(node_at(root, path), path)):
        must, _, advice = text.partition(". ")
        if details["type"] == "string_type":
            advice = "Text that looks like a number or truth value stands in quotes"
        text = ". ".join(filter(None, [f"{must}; found: {found}", _meant(details, target, found), advice]))
    return Problem(place_of_path(root, path, key=is_key), path, text)


def _text(details: ErrorDetails, target: _Target) -> str:
    kind = details["type"]
    context: dict[str, Any] = details.get("ctx", {})
    match kind:
        case "refused":
            return str(context["text"])
        case "value_error":
            return str(context["error"])
        case "extra_forbidden":
            return _unknown_key(target)
        case "missing":
            return f"is missing; it must be {target.form}"
        case _ if kind in _FORM_ERRORS:
            return f"must be {target.form}"
        case _:
            return details["msg"]


def _unknown_key(target: _Target) -> str:
    key, section = str(target.path[-1]), target.section
    if section is None:
        return "unknown key"
    if key in section.refused_keys:
        return section.refused_keys[key]
    known = keys_in_order(section)
    return f"unknown key.{did_you_mean(key, known)} Allowed here: {', '.join(known)}"


def keys_in_order(section: type[Section]) -> list[str]:
    """The keys as the reference lists them: a sink's `type` first, `on_schema_change` last."""
    return sorted(section.model_fields, key=lambda key: (key != "type", key == "on_schema_change"))


def _found(node: Node | None, path: Path) -> str:
    """The value as written, or nothing where it may be secret, is missing or long."""
    if not isinstance(node, Scalar) or path[-1] in ("url", "mask_key") or path[:2] == ("spark", "conf"):
        return ""
    if node.taken_from is not None:
        return f"the value of {node.taken_from}"
    if len(node.text) > LONGEST_VALUE_SHOWN or "://" in node.text:
        return ""
    return (node.text or "nothing") if node.plain else f'"{node.text}"'


def _meant(details: ErrorDetails, target: _Target, found: str) -> str:
    choices = details.get("ctx", {}).get("choices", ())
    if details["type"] == "literal_error":
        choices = target.form.split(" | ")
    return did_you_mean(found.strip('"'), list(choices)).strip()


def _target(location: tuple[int | str, ...], model: type[Section], root: Node) -> _Target:
    """Walks the model along pydantic's location, which also holds union tags and marks of mapping keys."""
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
    """The member of a discriminated union whose `type` is ``tag``."""
    return next((member for member in sections_in_union(annotation) if str(tag) in _types_of(member)), None)


def _types_of(member: type[Section]) -> list[str]:
    field = member.model_fields.get("type")
    return [] if field is None else form_of(field).split(" | ")
