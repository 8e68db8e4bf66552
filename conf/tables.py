"""Names of tables in the job file: exact names, globs, and the template that names a table's copy.

A name is ``database.table``. A part with a dot, a space, a backtick or one of the glob characters ``* ? [ ]`` is in
backticks (a backtick in it is doubled), where every character means itself: ```shop.`orders.2024` ```. Outside backticks
``*`` matches any characters, ``?`` one character, ``[abc]`` and ``[!abc]`` one of (not) these. Names are case-sensitive, as
in the server's catalog.
"""

import fnmatch
import functools
import math
import re
from dataclasses import dataclass

import yaml

from tidemark.state.table import TableId

NAME_FORM = "a table as database.table"
GLOB_FORM = 'a table or glob as database.table, like shop.orders or "shop.*"'
TEMPLATE_FORM = 'a template like "{schema}_{table}" or "copy.{table}"'
PLACEHOLDERS = ("schema", "table")

_PART = re.compile(r"`(?P<quoted>(?:[^`]|``)+)`|(?P<bare>[^`.\s]+)")
_GLOB_CHARACTERS = re.compile(r"[*?\[\]]")
_WILDCARD = re.compile(r"\[([^!\]])[^\]]*\]|\[!.[^\]]*\]|[*?]")
_WILDCARD_START = re.compile(r"[*?\[]")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """One table of the source, written as in its catalog."""

    database: str
    name: str

    def __str__(self) -> str:
        return f"{_quoted_if_needed(self.database)}.{_quoted_if_needed(self.name)}"


@dataclass(frozen=True, slots=True)
class TableGlob:
    """A pattern for ``database.table``. ``text`` is as written, the parts are fnmatch patterns."""

    text: str
    database_pattern: str
    table_pattern: str

    def __str__(self) -> str:
        return self.text

    def matches(self, database: str, table: str) -> bool:
        """Tells whether both parts match, case-sensitively."""
        return self.matches_database(database) and _compiled(self.table_pattern).fullmatch(table) is not None

    def matches_database(self, database: str) -> bool:
        """Tells whether tables of ``database`` may match."""
        return _compiled(self.database_pattern).fullmatch(database) is not None

    @property
    def example(self) -> TableName:
        """A table that this matches; the only one if there are no wildcards."""
        parts = (self.database_pattern, self.table_pattern)
        return TableName(*(_WILDCARD.sub(lambda found: found[1] or "x", part) for part in parts))

    @property
    def only_table(self) -> TableName | None:
        """The one table that this names, or None if it has wildcards."""
        try:
            return parse_table_name(self.text)
        except ValueError:
            return None


def glob_of(table: TableName) -> TableGlob:
    """Returns the pattern that matches this table alone."""
    return parse_table_glob(str(table))


def setting_of(key: str, table: TableId, value: object) -> str:
    """Returns a setting of one table as the job file has it: ``source.keys: {shop.orders: [id]}``, quoted as YAML needs it."""
    name = TableName(table.database, table.name)
    text = yaml.safe_dump(
        {str(name): value}, default_flow_style=True, allow_unicode=True, width=math.inf, sort_keys=False
    )
    return f"{key}: {text.strip()}"


@dataclass(frozen=True, slots=True)
class RenameRule:
    """A regular expression for the whole name of a copy, and the name that it gets instead, with the groups of the match."""

    pattern: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.pattern} to {self.replacement}"

    def renamed(self, name: str) -> str | None:
        """Returns the new name, None if the rule does not match."""
        match = _expression(self.pattern).fullmatch(name)
        return None if match is None else match.expand(self.replacement)


@dataclass(frozen=True, slots=True)
class TableTemplate:
    """The name of a table's copy. ``schema_template`` None: the copy is in the schema or database of the sink's URL.

    ``renames``: the first rule that matches the name that the template gives changes it, without the schema."""

    text: str
    schema_template: str | None
    table_template: str
    renames: tuple[RenameRule, ...] = ()

    def __str__(self) -> str:
        return self.text

    def target(self, source: TableName) -> tuple[str | None, str]:
        """Returns (schema, table) in the sink; schema None as above. The table is "" if a rule leaves nothing of its name."""
        schema = None if self.schema_template is None else _render(self.schema_template, source)
        name = _render(self.table_template, source)
        renamed = (rule.renamed(name) for rule in self.renames)
        return schema, next((new for new in renamed if new is not None), name)


def parse_table_name(text: str) -> TableName:
    """Reads ``database.table`` with backticks where needed. Raises ValueError with what is allowed."""
    (database, database_bare), (table, table_bare) = _parts(text, NAME_FORM)
    for part, bare in ((database, database_bare), (table, table_bare)):
        if bare and _GLOB_CHARACTERS.search(part):
            raise ValueError(
                f"must be {NAME_FORM}; globs are not allowed here (a name with '*?[]' must be in backticks)"
            )
    return TableName(database, table)


def parse_table_glob(text: str) -> TableGlob:
    """Reads a name or glob. Raises ValueError with what is allowed."""
    parts = _parts(text, GLOB_FORM)
    database, table = (part if bare else _WILDCARD_START.sub(r"[\g<0>]", part) for part, bare in parts)
    return TableGlob(text=text, database_pattern=database, table_pattern=table)


def parse_table_template(text: str) -> TableTemplate:
    """Reads a template for copies. Raises ValueError with what is allowed."""
    for name in _PLACEHOLDER.findall(text):
        if name not in PLACEHOLDERS:
            hint = " The source's database is {schema} here." if name == "database" else ""
            raise ValueError(f"has an unknown placeholder {{{name}}}.{hint} Allowed: {{schema}}, {{table}}")
    literal = _PLACEHOLDER.sub("", text)
    if "{" in literal or "}" in literal:
        raise ValueError(f"has an unpaired brace; must be {TEMPLATE_FORM}")
    parts = text.split(".")
    if len(parts) > 2 or not all(parts) or text != text.strip():
        raise ValueError(f"must be {TEMPLATE_FORM}: a table, or schema.table with one dot between them")
    return TableTemplate(text, parts[0] if len(parts) == 2 else None, parts[-1])


FOLDER_TEMPLATE = parse_table_template("{schema}.{table}")
"""The names of copies that are folders, unless the job file says otherwise."""


def check_rename(rule: RenameRule) -> tuple[str, str] | None:
    """Returns what is wrong with a rule: ("match" or "to", the reason); None if it can be used."""
    try:
        expression = _expression(rule.pattern)
    except re.error as error:
        return "match", f"is not a regular expression of Python: {error.msg}"
    try:
        expression.sub(rule.replacement, "")  # reads the replacement although nothing is found
    except (re.error, IndexError) as error:
        return "to", f"can't be used with this match: {getattr(error, 'msg', error)}"
    if re.search(r"\$[0-9{]", rule.replacement):
        return "to", "has '$' before a group; write the first group as \\1"
    if not rule.replacement.strip() or "." in rule.replacement:
        return "to", "must be the name of a table, without a schema: sink.table names the schema"
    return None


def _parts(text: str, form: str) -> tuple[tuple[str, bool], tuple[str, bool]]:
    """Returns ((database, whether it is without backticks), (table, the same)), backticks removed."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at <= len(text):
        match = _PART.match(text, at)
        if match is None or match.end() not in (len(text), text.find(".", match.end())):
            break
        quoted, bare = match["quoted"], match["bare"]
        found.append((bare, True) if quoted is None else (quoted.replace("``", "`"), False))
        at = match.end() + 1
    if len(found) == 2 and at == len(text) + 1:
        return found[0], found[1]
    if len(found) == 1 and at == len(text) + 1:
        raise ValueError(f"must be {form}; '{text}' names no database")
    if len(found) > 2 and at == len(text) + 1:
        raise ValueError(f"must be {form}; a name with a dot must be in backticks: shop.`orders.2024`")
    if re.search(r"[\s`]", text):
        raise ValueError(f"must be {form}; a name with a space or a backtick must be in backticks: shop.`old orders`")
    raise ValueError(f"must be {form}")


def _quoted_if_needed(part: str) -> str:
    if re.search(r"[.`*?\[\]\s]", part):
        return "`" + part.replace("`", "``") + "`"
    return part


def _render(template: str, source: TableName) -> str:
    values = {"schema": source.database, "table": source.name}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


@functools.lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


@functools.lru_cache(maxsize=256)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
