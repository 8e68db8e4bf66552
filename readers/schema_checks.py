"""Checks of tables, keys and settings that all sources share."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableGlob, TableName, setting_of
from tidemark.readers.findings import (
    MAX_NAMED,
    Finding,
    SettingError,
    exclusion_of,
    of_error,
    raise_refusals,
    refusal,
    warning,
)
from tidemark.readers.projection.settings import columns_read
from tidemark.state.errors import JobFileError, NothingSelectedError, SourceNotUsableError, UnsupportedTypeError
from tidemark.state.projection import TableProjection
from tidemark.state.remedies import ANOTHER_KEY, NEEDS_KEY, read_again
from tidemark.state.table import Column, TableId, TableSchema

BACK_AGAIN = "If they were dropped or renamed: a job that has copied them continues once they are there again."
"""The remedy if the tables of a job are gone."""


@dataclass(frozen=True, slots=True)
class CopiedColumns:
    """The columns that a job copied of a table when it last had it. `numbers`: `Column.number` of each. `excluded`: those that
    the job file excluded then. `seen`: all that the table had then. `oid`: the table's own number."""

    numbers: Mapping[str, int | None]
    excluded: frozenset[str]
    seen: frozenset[str] = frozenset()
    oid: int | None = None

    @classmethod
    def of(cls, schema: TableSchema, projection: TableProjection | None) -> "CopiedColumns":
        numbers = {column.name: column.number for column in schema.captured}
        excluded = frozenset(() if projection is None else projection.excluded)
        return cls(numbers, excluded, frozenset(column.name for column in schema.present), schema.oid)

    def in_table(self, oid: int | None) -> "CopiedColumns":
        """Returns the columns as they may be compared with those of the table that has the name now: another table's numbers
        tell nothing."""
        return self if oid == self.oid else replace(self, numbers=dict.fromkeys(self.numbers))

    def lost(self, now: Mapping[str, int | None]) -> list[str]:
        """Returns those that the table no longer has. A renamed one may be among them, if columns have no numbers."""
        there = set(now.values())
        return [
            name
            for name, number in self.numbers.items()
            if (name not in now if number is None else number not in there)
        ]

    def new(self, now: Mapping[str, int | None]) -> list[str]:
        """Returns the columns that are neither copied nor excluded, under any name."""
        known = set(self.numbers.values()) - {None}
        names = self.excluded | self.numbers.keys()
        return [name for name, number in now.items() if name not in names and number not in known]


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The job file's settings for single tables. `transforms`: the columns that transforms read, in lower case. `as_text`:
    PostgreSQL's array columns that stay text. `hashed`: those masked by sha256. `copied`: of the tables of which no new column
    is to be copied (`sink.on_schema_change`). `used_keys`: those by which a job that has started finds its rows."""

    exclude_columns: Mapping[TableId, frozenset[str]] = field(default_factory=dict)
    keys: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict)
    transforms: Mapping[TableId, frozenset[str]] = field(default_factory=dict)
    as_text: Mapping[TableId, frozenset[str]] = field(default_factory=dict)
    hashed: Mapping[TableId, frozenset[str]] = field(default_factory=dict)
    copied: Mapping[TableId, CopiedColumns] = field(default_factory=dict)
    used_keys: Mapping[TableId, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        job: JobFile,
        copied: Mapping[TableId, CopiedColumns],
        used_keys: Mapping[TableId, tuple[str, ...]] | None = None,
    ) -> "TableSettings":
        source = job.source
        return cls(
            exclude_columns={TableId(t.database, t.name): frozenset(c.exclude) for t, c in source.columns.items()},
            keys={TableId(t.database, t.name): tuple(columns) for t, columns in source.keys.items()},
            transforms=columns_read(job),
            as_text={TableId(t.database, t.name): frozenset(c.as_text) for t, c in source.columns.items()},
            hashed={
                TableId(t.database, t.name): frozenset(name for name, kind in c.mask.items() if kind == "sha256")
                for t, c in source.columns.items()
            },
            copied=copied,
            used_keys=used_keys or {},
        )

    def left_out(
        self,
        table: TableId,
        columns: Mapping[str, int | None],
        of_catalog: Collection[str],
        oid: int | None = None,
    ) -> tuple[frozenset[str], list[Finding]]:
        """Returns the columns that are not copied: those that the job file excludes, and new ones if they are ignored.
        Refuses a table if it is not known which columns are new. `columns`: all that it has, with their numbers. `of_catalog`:
        its key in the catalog, of which no column is ignored. `oid`: as in TableSchema."""
        excluded, copied = self.exclude_columns.get(table, frozenset[str]()), self.copied.get(table)
        if copied is None:
            return excluded, []
        copied = copied.in_table(oid)
        key = {*of_catalog, *self.keys.get(table, ())}
        new = [name for name in copied.new(columns) if name not in excluded and name not in key]
        lost = [name for name in copied.lost(columns) if copied.numbers[name] is None]
        unclear = [name for name in new if name not in copied.seen]
        if not (unclear and lost):
            return excluded | set(new), []
        name = TableName(table.database, table.name)
        problem = refusal(
            f"{table} has new columns ({', '.join(unclear)}) and lost others ({', '.join(lost)}): whether one is the other "
            "under a new name is not known, and new columns are to be ignored (sink.on_schema_change, add_column). Name those "
            f"that are not to be copied in {setting_of('source.columns', table, {'exclude': ['…']})}, or write "
            "add_column: evolve to copy them.",
            f"Then run the job again. If the table is parked: {read_again(name)}",
            table=table,
        )
        return excluded, [problem]


@dataclass(frozen=True, slots=True)
class Preflight:
    """The result of all checks. `schemas` has the tables whose columns can be copied, also if a finding refuses them."""

    schemas: dict[TableId, TableSchema]
    findings: tuple[Finding, ...]

    @property
    def accepted(self) -> dict[TableId, TableSchema]:
        """The tables that no finding refuses."""
        refused = {finding.table for finding in self.findings if finding.severity == "refuse"}
        return {table: schema for table, schema in self.schemas.items() if table not in refused}


def without_excluded(selected: Iterable[TableId], exclude: Sequence[TableGlob]) -> list[TableId]:
    """Returns the tables that no glob of `exclude` matches, sorted. Raises SourceNotUsableError if none is left."""
    kept = sorted(t for t in selected if not any(glob.matches(t.database, t.name) for glob in exclude))
    if not kept:
        raise NothingSelectedError(
            "source.exclude_tables excludes every table that source.tables names.", "Correct one of the two."
        )
    return kept


def raise_useless(useless: Sequence[SourceNotUsableError]) -> None:
    """Raises one error for all entries of `source.tables` that can't be used: NothingSelectedError if they only match
    nothing."""
    match_nothing = all(isinstance(error, NothingSelectedError) for error in useless)
    kind = NothingSelectedError if match_nothing else SourceNotUsableError
    raise_refusals((of_error(error, table=error.table) for error in useless), kind)


def warnings_of_wildcards(unmatched: Iterable[TableGlob]) -> list[Finding]:
    """Returns a warning for each wildcard of `source.tables` that matches no table now, for a job that has started."""
    return [
        warning(
            f"source.tables: {glob.text} matches no table now.",
            "If its tables were dropped, none is needed. Otherwise correct it, or GRANT the account its rights.",
        )
        for glob in unmatched
        if glob.only_table is None
    ]


def warnings_of_views(
    views: Iterable[TableId], include: Sequence[TableGlob], exclude: Sequence[TableGlob]
) -> list[Finding]:
    """Returns one warning of the views that `include` matches and `exclude` does not, or none."""
    matched = sorted(
        view
        for view in views
        if any(glob.matches(view.database, view.name) for glob in include)
        and not any(glob.matches(view.database, view.name) for glob in exclude)
    )
    if not matched:
        return []
    more = f" and {len(matched) - MAX_NAMED} more" if len(matched) > MAX_NAMED else ""
    return [
        warning(
            f"source.tables also matches what has no rows in the log, such as views: {', '.join(map(str, matched[:MAX_NAMED]))}"
            f"{more}. It is not copied.",
            "Name the tables behind it. If that is not what you want, name it in source.exclude_tables.",
        )
    ]


def spelling_hint(glob: TableGlob, tables: Iterable[TableId]) -> str:
    """Returns a sentence that names a table whose name differs from `glob` only by case; "" if there is none."""
    alike = [table for table in tables if f"{table}".lower() == glob.text.lower()]
    return f"The server spells it {alike[0]}: write it so. " if alike else ""


def check_settings_of_tables(tables: Collection[TableId], settings: TableSettings) -> list[Finding]:
    """Refuses settings for tables that are not copied. Such a name is misspelt, and the column to hide would be copied."""
    return [
        refusal(
            f"{section} names {table}, which source.tables does not select.",
            "Correct the name. Names are case-sensitive.",
            table=table,
        )
        for section, named in (
            ("source.columns", settings.exclude_columns),
            ("source.keys", settings.keys),
            ("transforms", settings.transforms),
        )
        for table in named
        if table not in tables
    ]


def require_logged_key(table: TableId, key: Iterable[str], unlogged: Collection[str]) -> None:
    """Raises JobFileError if a key has a column that the log lacks."""
    for name in key:
        if name in unlogged:
            raise JobFileError(
                f"Column {name} in the key of {table} is generated, and the log lacks generated columns.",
                ANOTHER_KEY,
            )


def warnings_of_unlogged(table: TableId, columns: Sequence[str]) -> list[Finding]:
    """Warns of generated columns that the log lacks, so that they are not copied."""
    if not columns:
        return []
    return [
        warning(
            f"Generated columns of {table} are not copied, because the log lacks them: {', '.join(columns)}.",
            "None is needed. To silence the warning, exclude them in source.columns.",
            table=table,
        )
    ]


def schema_or_findings(
    table: TableId, problems: Sequence[tuple[str, UnsupportedTypeError]], load: Callable[[], TableSchema]
) -> tuple[TableSchema | None, list[Finding]]:
    """Returns the schema from `load`; None and the reasons if there are `problems` or `load` raises JobFileError."""
    if problems:
        return None, [of_error(error, table=table, column=column) for column, error in problems]
    try:
        return load(), []
    except JobFileError as error:
        return None, [of_error(error, table=table)]


def require_excluded_columns(table: TableId, columns: Sequence[str], exclude_columns: Collection[str]) -> None:
    """Raises SettingError if source.columns excludes a column that is not in `columns`."""
    for name in exclude_columns:
        if name not in columns:
            raise SettingError(
                f"source.columns excludes {name} of {table}, which has no such column.",
                f"Correct the name. If the column was dropped, take it out of source.columns. The table's columns are "
                f"{', '.join(columns)}.",
                exclusion_of(table),
            )


def require_copied_key(table: TableId, key: Sequence[str], exclude_columns: Collection[str]) -> None:
    """Raises SettingError if source.columns excludes a column of the key."""
    excluded = [name for name in key if name in exclude_columns]
    if excluded:
        raise SettingError(
            f"source.columns excludes {', '.join(excluded)} of {table}, which its key needs.",
            "Copy the column, or name another unique key in source.keys.",
            exclusion_of(table),
        )


def require_fitting_override(
    table: TableId, columns: Sequence[str], primary: Sequence[str] | None, key_override: Sequence[str] | None
) -> None:
    """Raises JobFileError if source.keys contradicts the table's primary key or names columns that do not exist."""
    if key_override is None:
        return
    if primary is not None and set(key_override) != set(primary):
        raise JobFileError(
            f"source.keys names a key for {table}, which has the primary key ({', '.join(primary)}).",
            "Take the table out of source.keys.",
        )
    unknown = sorted(set(key_override) - set(columns))
    if unknown:
        raise JobFileError(
            f"source.keys names {', '.join(unknown)} for {table}, which has no such column.",
            f"Its columns are {', '.join(columns)}.",
        )


def check_mirror_key(
    schema: TableSchema, candidates: Sequence[Sequence[str]], is_exact: Callable[[Column], bool]
) -> list[Finding]:
    """Checks the key for sinks that find rows by it. `candidates`: the keys that source.keys may name. `is_exact`: returns True
    if equal values of the column are equal in a copy too."""
    table = schema.table
    if not schema.key:
        remedy = (
            f"Name one of its unique keys: {setting_of('source.keys', table, candidates[0])}."
            if candidates
            else NEEDS_KEY
        )
        return [refusal(f"{table} has no primary key: a mirror can't tell its rows apart.", remedy, table=table)]
    return [
        refusal(
            f"Column {name} in the key of {table} is {schema.column(name).source_type}: equal values need not be "
            "equal in a copy.",
            ANOTHER_KEY,
            table=table,
            column=name,
        )
        for name in schema.key
        if not is_exact(schema.column(name))
    ]
