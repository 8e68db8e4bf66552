"""YAML text → a tree that remembers, for every key and value, where it stands in the file.

Plain scalars are typed as YAML 1.2's core schema has it (null, true, false, decimal numbers), not as YAML 1.1: `on`,
`no`, `5400-5499`, `12:30:00`, `2024-01-01` and `007` stay text. Keys are always text. Refused: duplicate keys, tags,
merge keys, aliases of a node within itself, several documents. https://yaml.org/spec/1.2.2/#103-core-schema
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

Path = tuple[str | int, ...]
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

LONGEST_INTEGER = 40
"""Longer ones stay text, which no key takes for a number: Python refuses to turn very long digits into one."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a line of the file, or a ``--set`` (line None)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """``plain``: written without quotes, so typed by its text. ``taken_from``: names the variables or the file that the
    text, or a part of it, was taken from; such a text is never shown."""

    text: str
    plain: bool
    place: Place
    taken_from: str | None = None


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple["Node", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Entry:
    key_place: Place
    value: "Node"


@dataclass(frozen=True, slots=True)
class Mapping:
    entries: dict[str, Entry]
    place: Place


Node = Scalar | Sequence | Mapping


class YamlRefusedError(Exception):
    """The text is no YAML, or holds what the job file does not allow. Turned into a JobFileError by the loader."""

    def __init__(self, place: Place, reason: str, advice: str = "") -> None:
        super().__init__(place, reason, advice)
        self.place = place
        self.reason = reason
        self.advice = advice


def read_tree(text: str, place_of: Callable[[int], Place]) -> Node:
    """Reads one YAML document. ``place_of`` makes a Place from a line number, counted from 1.

    Raises YamlRefusedError. An empty document is an empty mapping.
    """
    try:
        node = _Loader(text).get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlRefusedError(place_of(line), f"is not readable as YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reasons = [part for part in (error.context, error.problem) if part]
        line = 1 if mark is None else mark.line + 1
        raise YamlRefusedError(place_of(line), *_yaml_reason(", ".join(reasons))) from None
    return Mapping({}, place_of(1)) if node is None else _convert(node, place_of, ())


def typed(scalar: Scalar) -> bool | int | float | str | None:
    """The scalar's value by the core schema; a quoted one is text."""
    if not scalar.plain:
        return scalar.text
    if scalar.text in _CONSTANTS:
        return _CONSTANTS[scalar.text]
    if _INTEGER.fullmatch(scalar.text):
        return int(scalar.text) if len(scalar.text) <= LONGEST_INTEGER else scalar.text
    if _FLOAT.fullmatch(scalar.text):
        return float(scalar.text)
    return scalar.text


def to_plain(node: Node, *, text_at: Callable[[Path], bool], path: Path = ()) -> Plain:
    """The tree as Python values. Below a path where ``text_at`` says so, numbers and truth values stay as written."""
    match node:
        case Mapping():
            return {
                key: to_plain(entry.value, text_at=text_at, path=(*path, key)) for key, entry in node.entries.items()
            }
        case Sequence():
            return [to_plain(item, text_at=text_at, path=(*path, index)) for index, item in enumerate(node.items)]
        case Scalar():
            value = typed(node)
            return node.text if value is not None and text_at(path) else value


def map_scalars(node: Node, change: Callable[[Path, Scalar], Scalar], path: Path = ()) -> Node:
    """The tree with every scalar replaced by ``change(path, scalar)``."""
    match node:
        case Mapping():
            entries = {
                key: replace(entry, value=map_scalars(entry.value, change, (*path, key)))
                for key, entry in node.entries.items()
            }
            return replace(node, entries=entries)
        case Sequence():
            items = tuple(map_scalars(item, change, (*path, index)) for index, item in enumerate(node.items))
            return replace(node, items=items)
        case Scalar():
            return change(path, node)


def node_at(root: Node, path: Path) -> Node | None:
    """The node at ``path``, or None if there is none."""
    node: Node | None = root
    for step in path:
        if isinstance(node, Mapping) and isinstance(step, str):
            entry = node.entries.get(step)
            node = None if entry is None else entry.value
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
        else:
            return None
    return node


def place_of_path(root: Node, path: Path, *, key: bool = False) -> Place:
    """Where the value at ``path`` stands (with ``key``: its key); of what is not there, where the nearest parent
    stands.
    """
    for length in range(len(path), 0, -1):
        parent, step = node_at(root, path[: length - 1]), path[length - 1]
        if isinstance(parent, Mapping) and isinstance(step, str) and step in parent.entries:
            entry = parent.entries[step]
            return entry.value.place if isinstance(entry.value, Scalar) and not key else entry.key_place
        if isinstance(parent, Sequence) and isinstance(step, int) and step < len(parent.items):
            return parent.items[step].place
    return root.place


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's parser without its constructors and without YAML 1.1's implicit types."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)


def _convert(node: yaml.Node, place_of: Callable[[int], Place], parents: tuple[yaml.Node, ...]) -> Node:
    place = place_of(node.start_mark.line + 1)
    if any(node is parent for parent in parents):
        raise YamlRefusedError(place, "an alias (*) of a value within itself")
    parents = (*parents, node)
    match node:
        case yaml.ScalarNode(tag=BaseResolver.DEFAULT_SCALAR_TAG):
            return Scalar(text=node.value, plain=node.style is None, place=place)
        case yaml.SequenceNode(tag=BaseResolver.DEFAULT_SEQUENCE_TAG):
            return Sequence(tuple(_convert(item, place_of, parents) for item in node.value), place)
        case yaml.MappingNode(tag=BaseResolver.DEFAULT_MAPPING_TAG):
            entries: dict[str, Entry] = {}
            for key_node, value_node in node.value:
                key, key_place = _key(key_node, place_of)
                if key in entries:
                    raise YamlRefusedError(
                        key_place, f"the key '{key}' stands here twice; first: {entries[key].key_place}"
                    )
                entries[key] = Entry(key_place, _convert(value_node, place_of, parents))
            return Mapping(entries, place)
        case _:
            raise YamlRefusedError(place, f"YAML tags like {_short_tag(node.tag)} are not allowed")


def _key(node: yaml.Node, place_of: Callable[[int], Place]) -> tuple[str, Place]:
    place = place_of(node.start_mark.line + 1)
    if not isinstance(node, yaml.ScalarNode):
        raise YamlRefusedError(place, "a key must be text, not a list or mapping (text with braces stands in quotes)")
    if node.tag != BaseResolver.DEFAULT_SCALAR_TAG:
        raise YamlRefusedError(place, f"YAML tags like {_short_tag(node.tag)} are not allowed")
    if node.value == "<<" and node.style is None:
        raise YamlRefusedError(place, "merge keys (<<) are not supported; write the keys out")
    return node.value, place


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _yaml_reason(reason: str) -> tuple[str, str]:
    """(what is wrong, what to do about it) in place of the parser's message."""
    if "expected a single document" in reason:
        return "holds more than one YAML document (---)", "A job file is one document"
    advice = "Text with braces, brackets, a comma or ': ' stands in quotes"
    if "alias" in reason:
        advice = "Text that starts with '*' or '&' stands in quotes"
    elif "cannot start any token" in reason:
        advice = "YAML is indented by spaces, and text that starts with '@', '`' or '%' stands in quotes"
    return f"is not readable as YAML: {reason}", advice
