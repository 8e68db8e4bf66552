"""Reads YAML as a tree that knows the line of every key and value.

Plain scalars are typed by YAML 1.2's core schema (null, true, false, decimal numbers), not by YAML 1.1: `on`, `no`,
`5400-5499`, `12:30:00`, `2024-01-01` and `007` stay text. Keys are always text. Refused: duplicate keys, tags, merge keys,
aliases of a node within itself, several documents, and more levels or nodes than any job file has.
https://yaml.org/spec/1.2.2/#103-core-schema
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import yaml
from yaml.composer import Composer
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

Path = tuple[str | int, ...]
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

MAX_INTEGER_LENGTH = 40
"""Longer ones stay text, which no key takes for a number: Python refuses to convert very long digits."""

MAX_NESTING = 40
"""Levels of lists and sections. A job file has seven."""

MAX_NODES = 200_000
"""Keys and values, with what aliases repeat: a few hundred bytes of aliases can mean billions of values."""

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(frozen=True, slots=True)
class Place:
    """The origin of a key or value: a line of the file, or a ``--set`` (line None)."""

    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A text or plain value. ``plain``: written without quotes, so typed by its text. ``taken_from``: the variables or the
    file from which the text, or a part of it, was taken. Such a text is never shown."""

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
    """The text is not YAML, or has something that a job file must not have. The loader turns it into a JobFileError.

    ``reason`` starts with a verb: "has …", "is …".
    """

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
        node = _Loader(text, place_of).get_single_node()
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise YamlRefusedError(place_of(line), f"is not readable as YAML: {error.reason}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reasons = [part for part in (error.context, error.problem) if part]
        line = 1 if mark is None else mark.line + 1
        raise YamlRefusedError(place_of(line), *_yaml_reason(", ".join(reasons))) from None
    return Mapping({}, place_of(1)) if node is None else _Conversion(place_of).convert(node, ())


def typed(scalar: Scalar) -> bool | int | float | str | None:
    """Returns the scalar's value by the core schema; a quoted one is text."""
    if not scalar.plain:
        return scalar.text
    if scalar.text in _CONSTANTS:
        return _CONSTANTS[scalar.text]
    if _INTEGER.fullmatch(scalar.text):
        return int(scalar.text) if len(scalar.text) <= MAX_INTEGER_LENGTH else scalar.text
    if _FLOAT.fullmatch(scalar.text):
        return float(scalar.text)
    return scalar.text


def to_plain(node: Node, *, text_at: Callable[[Path], bool], path: Path = ()) -> Plain:
    """Returns the tree as Python values. Below paths for which ``text_at`` is true, numbers and truth values stay text."""
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
    """Returns the tree with every scalar replaced by ``change(path, scalar)``."""
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
    """Returns the node at ``path``, or None if there is none."""
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
    """Returns where the value at ``path`` (with ``key``: its key) was written. For a missing one, where its nearest parent
    was written."""
    for length in range(len(path), 0, -1):
        parent, step = node_at(root, path[: length - 1]), path[length - 1]
        if isinstance(parent, Mapping) and isinstance(step, str) and step in parent.entries:
            entry = parent.entries[step]
            return entry.value.place if isinstance(entry.value, Scalar) and not key else entry.key_place
        if isinstance(parent, Sequence) and isinstance(step, int) and step < len(parent.items):
            return parent.items[step].place
    return root.place


class _Loader(Reader, Scanner, Parser, Composer, BaseResolver):
    """PyYAML's parser without its constructors and without YAML 1.1's implicit types. Refuses deep nesting: PyYAML calls
    itself for each level."""

    def __init__(self, stream: str, place_of: Callable[[int], Place]) -> None:
        self._place_of = place_of
        self._levels = 0
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._levels > MAX_NESTING:
            peek_event: Any = self.peek_event
            place = self._place_of(peek_event().start_mark.line + 1)
            raise YamlRefusedError(place, f"is nested more than {MAX_NESTING} levels deep")
        self._levels += 1
        try:
            node: yaml.Node | None = super().compose_node(parent, index)
        finally:
            self._levels -= 1
        return node


class _Conversion:
    """Converts PyYAML's nodes to ours. Each alias becomes a copy of what it repeats."""

    def __init__(self, place_of: Callable[[int], Place]) -> None:
        self._place_of = place_of
        self._nodes = 0

    def convert(self, node: yaml.Node, parents: tuple[yaml.Node, ...]) -> Node:
        place = self._place_of(node.start_mark.line + 1)
        if any(node is parent for parent in parents):
            raise YamlRefusedError(place, "has an alias (*) of a value within itself")
        if len(parents) > MAX_NESTING:
            raise YamlRefusedError(place, f"is nested more than {MAX_NESTING} levels deep")
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise YamlRefusedError(
                place, f"has more than {MAX_NODES} keys and values, counting what aliases (*) repeat"
            )
        match node:
            case yaml.ScalarNode(tag=BaseResolver.DEFAULT_SCALAR_TAG):
                return Scalar(text=node.value, plain=node.style is None, place=place)
            case yaml.SequenceNode(tag=BaseResolver.DEFAULT_SEQUENCE_TAG):
                return Sequence(tuple(self.convert(item, (*parents, node)) for item in node.value), place)
            case yaml.MappingNode(tag=BaseResolver.DEFAULT_MAPPING_TAG):
                return Mapping(self._entries(node, (*parents, node)), place)
            case _:
                raise YamlRefusedError(place, f"has a YAML tag like {_short_tag(node.tag)}, which is not allowed")

    def _entries(self, node: yaml.MappingNode, parents: tuple[yaml.Node, ...]) -> dict[str, Entry]:
        entries: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            key, key_place = _key(key_node, self._place_of)
            if key in entries:
                raise YamlRefusedError(
                    key_place, f"has the key '{key}' twice. The first one is at {entries[key].key_place}"
                )
            entries[key] = Entry(key_place, self.convert(value_node, parents))
        return entries


def _key(node: yaml.Node, place_of: Callable[[int], Place]) -> tuple[str, Place]:
    place = place_of(node.start_mark.line + 1)
    if not isinstance(node, yaml.ScalarNode):
        raise YamlRefusedError(
            place, "has a list or mapping as a key; a key must be text (text with braces must be in quotes)"
        )
    if node.tag != BaseResolver.DEFAULT_SCALAR_TAG:
        raise YamlRefusedError(place, f"has a YAML tag like {_short_tag(node.tag)}, which is not allowed")
    if node.value == "<<" and node.style is None:
        raise YamlRefusedError(place, "has a merge key (<<), which is not supported; write the keys out")
    return node.value, place


def _short_tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")


def _yaml_reason(reason: str) -> tuple[str, str]:
    """Returns (what is wrong, what to do about it) for the parser's message."""
    if "expected a single document" in reason:
        return "has more than one YAML document (---)", "A job file is one document"
    advice = "Text with braces, brackets, a comma or ': ' must be in quotes"
    if "alias" in reason:
        advice = "Text that starts with '*' or '&' must be in quotes"
    elif "cannot start any token" in reason:
        advice = "Indent YAML with spaces. Text that starts with '@', '`' or '%' must be in quotes"
    return f"is not readable as YAML: {reason}", advice
