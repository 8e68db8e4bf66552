"""The job file's section `tables`: the options of one table in one place. They are moved to the sections that have the same
options for all tables before the file is checked, so that nothing else knows this spelling."""

from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from pydantic import AfterValidator, Field

from tidemark.conf.problems import Problem, did_you_mean, dotted
from tidemark.conf.section import ColumnNames, Section, Text, Written, refuse
from tidemark.conf.sink import BadValuePolicy
from tidemark.conf.source import NameOfTable, TableColumns
from tidemark.conf.tables import parse_table_name
from tidemark.conf.yaml_tree import Entry, Mapping, Node, Path, Place, Scalar, node_at, typed

SECTION = "tables"
_FORM = "a mapping from tables to options, like {shop.orders: {key: [id]}}"
_HOMES: dict[str, Path] = {
    "columns": ("source", "columns"),
    "key": ("source", "keys"),
    "where": ("snapshot", "where"),
    "transform": ("transforms",),
    "on_bad_value": ("sink", "on_bad_value_in"),
    "partition_by": ("sink", "partition_by"),
}


class TableOptions(Section):
    """The options of one table, as another way to write what the sections have for each table. Write each option in only
    one of the two places. Messages about a job that runs may name the other one.
    """

    columns: Annotated[TableColumns | None, Written("a section with exclude, mask, as_text")] = Field(
        None, description="The same as `source.columns`.", examples=[{"exclude": ["ssn"], "mask": {"email": "sha256"}}]
    )
    key: ColumnNames | None = Field(None, description="The same as `source.keys`.", examples=[["event_uuid"]])
    where: Text | None = Field(
        None, description="The same as `snapshot.where`.", examples=["created_at >= '2024-01-01'"]
    )
    transform: Text | None = Field(
        None, description="The same as `transforms`.", examples=["SELECT *, amount * 1.2 AS gross FROM input"]
    )
    on_bad_value: Annotated[
        AnyMapping[Text, BadValuePolicy] | None, Written("a mapping from columns to park | stop | null | text | reject")
    ] = Field(None, description="The same as `sink.on_bad_value_in`.", examples=[{"note": "text"}])
    partition_by: ColumnNames | None = Field(
        None, description="Sink delta: the same as `sink.partition_by`.", examples=[["country"]]
    )


def _moved_before(options: AnyMapping[NameOfTable, TableOptions]) -> AnyMapping[NameOfTable, TableOptions]:
    if options:
        raise refuse("is moved to the other sections when a file is loaded")
    return options


OptionsByTable = Annotated[AnyMapping[NameOfTable, TableOptions], AfterValidator(_moved_before), Written(_FORM)]


@dataclass(slots=True)
class MovedOptions:
    """The tree without `tables`. ``written``: the path at which the file has what is at another path of the tree."""

    root: Mapping
    written: dict[Path, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def as_written(self, path: Path) -> Path:
        """Returns a path of the tree as the file has it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.written:
                return (*self.written[path[:end]], *path[end:])
        return path


def move_options(root: Mapping) -> MovedOptions:
    """Moves the options of `tables` to the sections that have them for all tables."""
    moved = MovedOptions(replace(root, entries={key: entry for key, entry in root.entries.items() if key != SECTION}))
    tables = root.entries.get(SECTION)
    if tables is None or _is_empty(tables.value):
        return moved
    if not isinstance(tables.value, Mapping):
        text = f"must be {_FORM}; the list of tables to copy is source.tables"
        moved.problems.append(Problem(tables.key_place, (SECTION,), text))
        return moved
    for name, entry in tables.value.entries.items():
        _move_table(moved, name, entry)
    return moved


def _move_table(moved: MovedOptions, name: str, entry: Entry) -> None:
    path: Path = (SECTION, name)
    try:
        parse_table_name(name)
    except ValueError as error:
        moved.problems.append(Problem(entry.key_place, path, str(error)))
        return
    options = entry.value
    if not isinstance(options, Mapping):
        if not _is_empty(options):
            moved.problems.append(Problem(entry.key_place, path, f"must be a section with {', '.join(_HOMES)}"))
        return
    for option, value in options.entries.items():
        text = _misplaced(moved, name, option)
        if text:
            moved.problems.append(Problem(value.key_place, (*path, option), text))
        else:
            home = (*_HOMES[option], name)
            moved.root = _with(moved.root, home, value)
            moved.written[home] = (*path, option)


def _misplaced(moved: MovedOptions, name: str, option: str) -> str:
    """Why an option can't be moved, or nothing."""
    if option not in _HOMES:
        return f"unknown key.{did_you_mean(option, list(_HOMES))} Allowed here: {', '.join(_HOMES)}"
    kind = node_at(moved.root, ("sink", "type"))
    if option == "partition_by" and isinstance(kind, Scalar) and kind.text != "delta":
        return "is only for sink.type delta"
    known = node_at(moved.root, _HOMES[option])
    for other, entry in known.entries.items() if isinstance(known, Mapping) else ():
        if _same_table(name, other):
            path = moved.as_written((*_HOMES[option], other))
            return f"is given twice: {entry.key_place} has {dotted(path)}. Write it in one of the two places"
    return ""


def _same_table(name: str, other: str) -> bool:
    try:
        return parse_table_name(name) == parse_table_name(other)
    except ValueError:
        return False  # told when the other section is checked


def _with(node: Mapping, path: Path, value: Entry) -> Mapping:
    """Returns the tree with an entry at the path. A section that is something else than a mapping stays, and is refused when
    it is checked."""
    step, rest = str(path[0]), path[1:]
    if not rest:
        return replace(node, entries={**node.entries, step: value})
    old = node.entries.get(step)
    if old is None or _is_empty(old.value):
        old = Entry(value.key_place, Mapping({}, value.key_place))
    if not isinstance(old.value, Mapping):
        return node
    return replace(node, entries={**node.entries, step: replace(old, value=_with(old.value, rest, value))})


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and typed(node) is None


def text_of_place(place: Place, path: Path) -> str:
    """`shop.yaml:14: transforms."shop.orders"`, or the `--set` that names the path already."""
    text = dotted(path)
    return str(place) if str(place).endswith(text) else f"{place}: {text}"
