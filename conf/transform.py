"""A table's transform: one SELECT over `input`, parsed by DuckDB and checked before a job starts.

Everything that is not a function of one row is refused: joins, groups, orders, filters, repeated rows, and functions whose
result may differ in a retry. The statement that runs is generated from the checked parse tree.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tidemark.conf.duckdb_engine import open_engine

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

INPUT = "input"
MAX_TRANSFORM_LENGTH = 65_536

Json = Mapping[str, Any]

_PLAIN_CLASSES = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR"}
)
_REFUSED_CLASSES = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "LAMBDA": "a lambda",
    "STAR": "a * in an expression",
    "COLLATE": "COLLATE",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a reference by position",
}
_REFUSED_FUNCTIONS = frozenset(
    {"current_localtime", "current_localtimestamp", "current_setting", "getvariable", "vector_type", "version"}
    | {"list_aggr", "list_aggregate", "array_aggr", "array_aggregate", "aggregate"}
)
"""DuckDB 1.5 calls them consistent, but their result depends on more than their arguments (the last ones: may depend)."""
_REFUSED_PARTS = {
    "where_clause": "WHERE: use snapshot.where for the snapshot, or filter the copy; a filter on changes would turn updates "
    "into deletes",
    "group_expressions": "GROUP BY",
    "group_sets": "GROUP BY",
    "having": "HAVING",
    "sample": "a sample",
    "qualify": "QUALIFY",
    "cte_map": "WITH",
}
_MODIFIERS = {
    "DISTINCT_MODIFIER": "DISTINCT",
    "LIMIT_MODIFIER": "LIMIT",
    "LIMIT_PERCENT_MODIFIER": "LIMIT",
    "ORDER_MODIFIER": "ORDER BY",
}


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result: the input's `column` unchanged, or computed from the columns `reads`."""

    name: str
    column: str | None
    reads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Star:
    excluded: frozenset[str]
    replaced: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Transform:
    """A checked statement. `sql` is as DuckDB writes it. Names are in lower case, as DuckDB compares them."""

    sql: str
    reads: frozenset[str]
    """The columns that expressions use, without those that are only copied."""
    _items: tuple[Output | _Star, ...]

    def outputs(self, columns: Sequence[str]) -> tuple[Output, ...]:
        """Returns the result's columns for an input of `columns`, which gives the spelling of `column` and `reads`. Raises
        ValueError."""
        spelt = {name.lower(): name for name in columns}
        found: list[Output] = []
        for item in self._items:
            if isinstance(item, _Star):
                _require(item.excluded | set(item.replaced), spelt)
                for low, name in spelt.items():
                    if low in item.replaced:
                        found.append(Output(name, None, _spelt(item.replaced[low], spelt)))
                    elif low not in item.excluded:
                        found.append(Output(name, name))
            elif item.column is None:
                found.append(Output(item.name, None, _spelt(item.reads, spelt)))
            else:
                _require({item.column}, spelt)
                found.append(Output(item.name or spelt[item.column], spelt[item.column]))
        names = [output.name.lower() for output in found]
        repeated = next((output.name for output in found if names.count(output.name.lower()) > 1), None)
        if repeated is not None:
            raise ValueError(f"gives two columns the name {repeated} (DuckDB's names are case-insensitive)")
        return tuple(found)


@lru_cache(maxsize=256)
def parse_transform(sql: str) -> Transform:
    """Parses and checks a transform. Raises ValueError with what is wrong, as it follows the key's path."""
    if len(sql) > MAX_TRANSFORM_LENGTH:
        raise ValueError(f"is longer than {MAX_TRANSFORM_LENGTH} characters")
    import duckdb  # only jobs with transforms need it

    engine = open_engine()
    try:
        text = str(_one(engine, "SELECT json_serialize_sql(?::VARCHAR)", sql)[0])
        select = _select_of(json.loads(text))
        table = _checked_input(select["from_table"])
        items = tuple(_item(engine, node, table) for node in select["select_list"])
        written = str(_one(engine, "SELECT json_deserialize_sql(?::JSON)", text)[0])
    except duckdb.Error as error:
        raise ValueError(f"can't be checked by DuckDB: {str(error).partition(chr(10))[0]}") from None
    finally:
        engine.close()
    reads = [item.reads if isinstance(item, Output) else frozenset().union(*item.replaced.values()) for item in items]
    return Transform(written, frozenset().union(*reads), items)


def _one(engine: "DuckDBPyConnection", sql: str, argument: str) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = engine.execute(sql, [argument]).fetchone()
    assert row is not None
    return row


def _select_of(parsed: Json) -> Json:
    if parsed["error"]:
        if parsed["error_type"] == "parser":
            raise ValueError(f"is not SQL that DuckDB understands: {parsed['error_message']}")
        raise ValueError(f"must be one SELECT … FROM {INPUT}")
    if len(parsed["statements"]) != 1:
        raise ValueError(f"must be one SELECT … FROM {INPUT}, and nothing after it")
    node: Json = parsed["statements"][0]["node"]
    if node["type"] != "SELECT_NODE":
        raise ValueError(f"must be one SELECT … FROM {INPUT}, without UNION or similar")
    for part, what in _REFUSED_PARTS.items():
        value = node.get(part)
        if value and value != {"map": []}:
            raise ValueError(f"must not have {what}")
    for modifier in node["modifiers"]:
        raise ValueError(f"must not have {_MODIFIERS.get(modifier['type'], modifier['type'])}")
    unknown = set(node) - set(_REFUSED_PARTS) - {"type", "modifiers", "select_list", "from_table", "aggregate_handling"}
    if unknown or node["aggregate_handling"] != "STANDARD_HANDLING":
        raise ValueError("must not have anything but a list of columns and FROM input")
    return node


def _checked_input(table: Json) -> frozenset[str]:
    """Returns the names that may qualify a column."""
    wrong = [
        key
        for key in ("sample", "schema_name", "catalog_name", "column_name_alias", "at_clause")
        if table.get(key) not in (None, "", [])
    ]
    if table["type"] != "BASE_TABLE" or str(table["table_name"]).lower() != INPUT or wrong:
        raise ValueError(f"must read FROM {INPUT} and nothing else: no other tables, joins, files or functions")
    return frozenset({str(table["alias"] or INPUT).lower()})


def _item(engine: "DuckDBPyConnection", node: Json, table: frozenset[str]) -> Output | _Star:
    if node["class"] == "STAR":
        known = {"relation_name", "exclude_list", "replace_list"} | {"class", "type", "alias", "query_location"}
        if any(value for key, value in node.items() if key not in known):
            raise ValueError("must not have COLUMNS(…), * LIKE or * RENAME: name the columns")
        _require_table(node["relation_name"], table)
        replaced = {str(r["key"]).lower(): _reads(engine, r["value"], table) for r in node["replace_list"]}
        return _Star(frozenset(str(name).lower() for name in node["exclude_list"]), replaced)
    if node["class"] == "COLUMN_REF":
        return Output(str(node["alias"]), _column(node, table))
    reads = _reads(engine, node, table)
    if not node["alias"]:
        raise ValueError("must name each computed column: … AS name")
    return Output(str(node["alias"]), None, reads)


def _reads(engine: "DuckDBPyConnection", expression: Json, table: frozenset[str]) -> frozenset[str]:
    """Checks an expression, and returns the columns that it uses."""
    found = set()
    for node in _expressions(expression):
        _check_expression(engine, node)
        if node["class"] == "COLUMN_REF":
            found.add(_column(node, table))
    return frozenset(found)


def _expressions(tree: Any) -> Iterator[Json]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if "class" in node:
                yield node
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node


def _check_expression(engine: "DuckDBPyConnection", node: Json) -> None:
    kind = str(node["class"])
    if kind not in _PLAIN_CLASSES:
        raise ValueError(f"must not have {_REFUSED_CLASSES.get(kind, kind)}")
    if kind == "FUNCTION":
        if node["schema"] not in ("", "main", "pg_catalog") or node["catalog"]:
            raise ValueError(f"must not call functions of {node['schema'] or node['catalog']}")
        _check_function(engine, str(node["function_name"]).lower(), len(node["children"]))


def _check_function(engine: "DuckDBPyConnection", name: str, argument_count: int) -> None:
    found = engine.execute(
        "SELECT DISTINCT function_type, stability, macro_definition, parameters FROM duckdb_functions() "
        "WHERE lower(function_name) = ?",
        [name],
    ).fetchall()
    if not found:
        raise ValueError(f"calls {name}, which is not a function of one row")
    if name in _REFUSED_FUNCTIONS or (name == "age" and argument_count == 1):
        raise ValueError(f"calls {name}, whose result may differ when a row is read again")
    for kind, stability, definition, parameters in found:
        if kind == "macro":
            _check_macro(engine, name, str(definition), {str(parameter).lower() for parameter in parameters})
        elif kind != "scalar":
            raise ValueError(f"calls {name}, which is not a function of one row")
        elif stability != "CONSISTENT" and name != "error":
            raise ValueError(f"calls {name}, whose result may differ when a row is read again")


def _check_macro(engine: "DuckDBPyConnection", name: str, definition: str, parameters: set[str]) -> None:
    parsed = json.loads(str(_one(engine, "SELECT json_serialize_sql(?::VARCHAR)", f"SELECT {definition}")[0]))
    if parsed["error"]:
        raise ValueError(f"calls {name}, which can't be checked")
    for node in _expressions(parsed["statements"][0]["node"]["select_list"]):
        if node["class"] == "COLUMN_REF" and str(node["column_names"][-1]).lower() not in parameters:
            raise ValueError(f"calls {name}, whose result may differ when a row is read again")
        _check_expression(engine, node)


def _column(node: Json, table: frozenset[str]) -> str:
    *before, name = (str(part) for part in node["column_names"])
    if len(before) > 1:
        raise ValueError(f"names {'.'.join([*before, name])}, which is not a column of {INPUT}")
    _require_table("".join(before), table)
    return name.lower()


def _require_table(name: str, table: frozenset[str]) -> None:
    if name and name.lower() not in table:
        raise ValueError(f"names {name}, which is not {', '.join(table)}")


def _require(names: frozenset[str] | set[str], spelt: Mapping[str, str]) -> None:
    unknown = sorted(names - set(spelt))
    if unknown:
        raise ValueError(f"names {', '.join(unknown)}, but the columns are {', '.join(spelt.values())}")


def _spelt(names: frozenset[str], spelt: Mapping[str, str]) -> frozenset[str]:
    _require(names, spelt)
    return frozenset(spelt[name] for name in names)
