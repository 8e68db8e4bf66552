"""`--set a.b=c`: changes to the job file's tree from the command line.

The path consists of keys joined by dots. A key with a dot is in quotes: `source.columns."shop.orders".exclude=[a]`. Shells
remove quotes, so a table's two parts are also understood without them, and below `spark.conf` the rest of the path is one
key. The value is YAML as in the file. It replaces the old value; lists are replaced as a whole.
"""

import re
from collections.abc import Iterable
from dataclasses import replace

from tidemark.conf.problems import Problem, dotted
from tidemark.conf.yaml_tree import (
    MAX_NESTING,
    Entry,
    Mapping,
    Node,
    Path,
    Place,
    Scalar,
    YamlRefusedError,
    read_tree,
)

_STEP = re.compile(r'"(?P<double>[^"]+)"|\'(?P<single>[^\']+)\'|(?P<bare>[^."\'=\s]+)')
_KEYED_BY_TABLE: frozenset[Path] = frozenset({("source", "columns"), ("source", "keys"), ("snapshot", "where")})
_KEYED_BY_SETTING: Path = ("spark", "conf")
_FORM = "write --set key.key=value"


def apply_overrides(
    root: Mapping, overrides: Iterable[str], *, spelled: str = "--set"
) -> tuple[Mapping, list[Problem]]:
    """Returns the tree with all overrides applied in order, and the problems of those that can't be applied.

    `spelled`: what the user writes before a path, for messages.
    """
    problems: list[Problem] = []
    for override in overrides:
        result = _apply(root, override, spelled)
        if isinstance(result, Problem):
            problems.append(result)
        else:
            root = result
    return root, problems


def _apply(root: Mapping, override: str, spelled: str) -> Mapping | Problem:
    steps, value_text = _split(override)
    if value_text is None:
        name = dotted(tuple(step for step, _ in steps))
        return Problem(Place(f"{spelled} {name}".rstrip()), (), f"must be a path, '=' and a value: {_FORM}")
    path = _joined(steps)
    if len(path) > MAX_NESTING:
        return Problem(Place(f"{spelled} {dotted(path[:5])}…"), (), f"the path has more than {MAX_NESTING} keys")
    place = Place(f"{spelled} {dotted(path)}")
    try:
        value = (
            read_tree(value_text, lambda _line: place) if value_text.strip() else Scalar("", plain=True, place=place)
        )
    except YamlRefusedError as error:
        quotes = f""". Put text with braces, brackets or a leading '*' in quotes that the shell keeps: '{dotted(path)}="…"'"""
        return Problem(place, path, f"the value {error.reason}{quotes if error.advice else ''}")
    return _set(root, path, value, place)


def _split(override: str) -> tuple[list[tuple[str, bool]], str | None]:
    """Returns ([(step, whether it was quoted)], the value's text, or None if the override is malformed)."""
    steps: list[tuple[str, bool]] = []
    at = 0
    while (match := _STEP.match(override, at)) is not None:
        bare = match["bare"]
        steps.append((bare, False) if bare is not None else (match["double"] or match["single"], True))
        at = match.end()
        if override[at : at + 1] == "=":
            return steps, override[at + 1 :]
        if override[at : at + 1] != ".":
            break
        at += 1
    return steps, None


def _joined(steps: list[tuple[str, bool]]) -> tuple[str, ...]:
    """Returns the keys of the path. The parts of a table's or a setting's unquoted name are joined again."""
    path = tuple(step for step, _ in steps)
    head, rest = path[:2], path[2:]
    if head == _KEYED_BY_SETTING and rest:
        return (*head, ".".join(rest))
    if path[0] == "tables" and len(path) >= 3 and not steps[1][1] and not steps[2][1] and "." not in path[1]:
        return ("tables", f"{path[1]}.{path[2]}", *path[3:])
    if path[0] == "transforms" and len(path) == 3 and not steps[1][1] and "." not in path[1]:
        return ("transforms", f"{path[1]}.{path[2]}")
    if head in _KEYED_BY_TABLE and len(rest) >= 2 and not steps[2][1] and "." not in rest[0]:
        return (*head, f"{rest[0]}.{rest[1]}", *rest[2:])
    return path


def _set(node: Node, path: tuple[str, ...], value: Node, place: Place, done: Path = ()) -> Mapping | Problem:
    if isinstance(node, Scalar) and node.plain and node.text in ("", "~", "null"):
        node = Mapping({}, place)
    if not isinstance(node, Mapping):
        return Problem(place, done, "is a value, not a section with keys: --set can't set a key below it")
    step, rest = path[0], path[1:]
    new: Node = value
    if rest:
        old = node.entries[step].value if step in node.entries else Mapping({}, place)
        below = _set(old, rest, value, place, (*done, step))
        if isinstance(below, Problem):
            return below
        new = below
    key_place = node.entries[step].key_place if rest and step in node.entries else place
    return replace(node, entries={**node.entries, step: Entry(key_place, new)})
