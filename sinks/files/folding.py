"""The state of a table that its files fold to, as docs/sinks.md tells readers to fold them: the last change of each key.

DuckDB reads the files and keeps a row for each key in a database of its own in a temporary folder: the key's columns, the place
of its last change, whether it is gone, and hashes of its values. No value but those of keys is kept, and DuckDB's memory is
limited. `refresh` takes in the files that were published since. They are taken in the order of their epochs, because the log of
PostgreSQL may leave values out of an update. Such a value is that of the key's row before, or of the row whose key it was.

Tables: `base` is sorted by key, so few of its blocks are read for a range of integers. `recent` has keys that changed since.
`fresh` has the rows of the files that are being taken in.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.sinks.files.merging import log_files
from tidemark.sinks.files.part import Format
from tidemark.state.change_batch import ChangeType
from tidemark.state.errors import SinkError
from tidemark.state.table import TableSchema, arrow_type_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "1GB"
FRESH_BYTES = 512 << 20
"""Files of this size are taken in together, or one that is larger."""
FRESH_FILES = 1000
RECENT_SHARE = 8
"""`recent` goes into `base` once it has this part of its keys, and at least RECENT_ROWS."""
RECENT_ROWS = 100_000
_ATTEMPTS = 20
_EPOCH = re.compile(r"e(\d+)-")
_DELETE, _INSERT, _TRUNCATE = (t.name.lower() for t in (ChangeType.DELETE, ChangeType.INSERT, ChangeType.TRUNCATE))
_SETTINGS = (
    f"memory_limit = '{MEMORY_LIMIT}'",
    "threads = 2",
    "preserve_insertion_order = false",
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
)


@dataclass(frozen=True, slots=True)
class _NewFile:
    """`log_epoch`: the last epoch of a file of log changes. `is_partly_known`: a merged one whose first epochs were taken in
    before."""

    path: Path
    log_epoch: int = 0
    is_partly_known: bool = False


@dataclass(slots=True)
class Folding:
    """The state of one table. `temporary`: a folder of its own, which the caller removes. `copy_folder`: the table's."""

    schema: TableSchema
    copy_folder: Path
    temporary: Path
    file_format: Format
    truncated: int = -1
    """The place of the table's last TRUNCATE: rows before it are ignored."""
    _engine: "DuckDBPyConnection | None" = None
    _taken: set[str] = field(default_factory=set)
    _log_epoch: int = 0
    """All log changes up to this epoch were taken in."""
    _log_place: int = -1
    """The place of the last of them."""

    @property
    def keys(self) -> list[str]:
        """The names of the key's columns in the tables here."""
        return [f"k{i}" for i in range(len(self.schema.key))]

    @property
    def key_list(self) -> str:
        return ", ".join(self.keys)

    def key_column(self, name: str) -> str:
        return f"k{self.schema.key.index(name)}"

    @property
    def hashes(self) -> list[str]:
        """The names of the columns with hashes: `d` of all values that no change leaves out, and one for each other column."""
        return ["d", *self._toasts]

    def open(self) -> "DuckDBPyConnection":
        """Opens the database. The caller calls `close`."""
        import duckdb

        engine = duckdb.connect(str(self.temporary / "folded.duckdb"))
        for setting in (*_SETTINGS, f"temp_directory = '{_text(str(self.temporary / 'spilled'))}'"):
            engine.execute(f"SET {setting}")
        self._engine = engine
        kinds = [f"{name} {kind}" for name, kind in zip(self.keys, self._key_kinds, strict=True)]
        kinds += ["o HUGEINT", "gone BOOLEAN", *(f"{name} UHUGEINT" for name in self.hashes)]
        for table in ("base", "recent"):
            engine.execute(f"CREATE TABLE {table} ({', '.join(kinds)})")
        return engine

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Raises SinkError. Its message has no value of a row."""
        import duckdb

        assert self._engine is not None, "the database is open"
        try:
            return self._engine.execute(statement).fetchall()
        except duckdb.Error as error:
            text = re.split(r"[\"'(0-9]", str(error), maxsplit=1)[0].strip()  # what follows may quote a row
            raise SinkError(
                f"The files in {self.copy_folder} can't be compared: {text} ….",
                f"Check that they are whole, and that there is space in {self.temporary.parent} (TMPDIR).",
            ) from error

    # Files

    def refresh(self) -> None:
        """Takes in the files that were published since. Raises SinkError for a damaged file."""
        for attempt in range(_ATTEMPTS):
            new = self._new_files()
            try:
                for group in self._groups(new):
                    self._take(group)
            except (SinkError, FileNotFoundError) as error:
                # A file that was merged meanwhile is gone: the next list has the merged one.
                if all(file.path.exists() for file in new) or attempt == _ATTEMPTS - 1:
                    if isinstance(error, SinkError):
                        raise
                    raise SinkError(f"Files vanish from {self.copy_folder}.", "Compare again.") from error
            else:
                return

    def _new_files(self) -> list[_NewFile]:
        """Returns the files that were not taken in, in the order of their epochs, those of other names last."""
        found = []
        reached = self._log_epoch
        logs = log_files(self.copy_folder)
        for log in logs:
            if log.last > reached:
                if log.path.name not in self._taken:
                    found.append((log.first, _NewFile(log.path, log.last, log.first <= reached)))
                reached = log.last
        known = {log.path.name for log in logs} | self._taken
        for name in os.listdir(self.copy_folder):
            if not name.startswith((".", "_")) and name not in known and (self.copy_folder / name).is_file():
                match = _EPOCH.match(name)
                found.append((int(match[1]) if match else sys.maxsize, _NewFile(self.copy_folder / name)))
        return [file for _, file in sorted(found, key=lambda pair: (pair[0], pair[1].path.name))]

    def _groups(self, files: Sequence[_NewFile]) -> Iterator[list[_NewFile]]:
        """Yields neighbouring files with the same columns."""
        group: list[_NewFile] = []
        size = 0
        columns: pa.Schema | None = None
        for file in files:
            of_file = _columns(file.path) if self.file_format == "parquet" else None
            is_full = size >= FRESH_BYTES or len(group) >= FRESH_FILES
            if group and (is_full or file.is_partly_known or group[-1].is_partly_known or of_file != columns):
                yield group
                group, size = [], 0
            group.append(file)
            size += file.path.stat().st_size
            columns = of_file
        if group:
            yield group

    def _take(self, files: Sequence[_NewFile]) -> None:
        self.load("fresh", [file.path for file in files])
        if files[0].is_partly_known:
            self.execute(f"DELETE FROM fresh WHERE o <= {self._log_place}")
        ((truncated, last),) = self.execute(
            f"SELECT max(o) FILTER (kind = '{_TRUNCATE}'), max(o) FILTER (is_logged) FROM fresh"
        )
        self.truncated = max(self.truncated, -1 if truncated is None else truncated)
        self._log_place = max(self._log_place, -1 if last is None else last)
        no_key = " OR ".join(f"{name} IS NULL" for name in self.keys)
        self.execute(f"DELETE FROM fresh WHERE kind = '{_TRUNCATE}' OR o <= {self.truncated} OR {no_key}")
        self._follow_keys()
        self._fold()
        self.execute("DROP TABLE fresh")
        self._taken.update(file.path.name for file in files)
        self._log_epoch = max(self._log_epoch, *(file.log_epoch for file in files))

    def load(self, table: str, paths: Sequence[Path]) -> None:
        """Creates a table with the rows of files that have the same columns: `k0` …, `o` (their order), `is_logged`, `kind`,
        hashes as in `hashes`, and for each column that may be left out whether it is (`u0` …)."""
        listed = ", ".join(f"'{_text(_without_wildcards(path))}'" for path in paths)
        if self.file_format == "parquet":
            source = f"read_parquet([{listed}], {_OPTIONS})"
            first = _text(_without_wildcards(paths[0]))
            described = self.execute(f"DESCRIBE SELECT * FROM read_parquet('{first}', hive_partitioning = false)")
            # By place: DuckDB gives names that differ only in case other names.
            names = _columns(paths[0]).names
            columns = {name: (_quoted(d[0]), d[1]) for name, d in zip(names, described, strict=True)}
        else:
            kinds = {column.name: "JSON" for column in self.schema.captured} | _JSON_META
            typed = ", ".join(f"'{_text(name)}': '{kind}'" for name, kind in kinds.items())
            source = f"read_ndjson([{listed}], columns = {{{typed}}}, {_OPTIONS}, {_JSON_OPTIONS})"
            columns = {name: (_quoted(name), kind) for name, kind in kinds.items()}
        selected = [f"{expression} AS {name}" for name, expression in self._expressions(columns).items()]
        self.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT {', '.join(selected)} FROM {source}")

    def _expressions(self, columns: dict[str, tuple[str, str]]) -> dict[str, str]:
        toastable = self.schema.toastable
        whole = [column.name for column in self.schema.captured if column.name not in toastable]
        found = {}
        for name, key, kind in zip(self.keys, self.schema.key, self._key_kinds, strict=True):
            is_binary = self.schema.column(key).arrow_type == "binary"
            text = _key_text(*columns[key], is_binary=is_binary) if key in columns else "NULL"
            found[name] = f"TRY_CAST({text} AS {kind})"
        found["o"] = f"CAST({columns['_commit_version'][0]} AS HUGEINT) * {1 << 32} + {columns['_seq'][0]}"
        found["is_logged"] = f"regexp_matches({_FILE}, '-log[.][a-z]+$')"
        found["kind"] = columns["_change_type"][0]
        found["d"] = _hash(columns.get(name) for name in whole)
        for i, name in enumerate(toastable):
            found[f"t{i}"] = _hash([columns.get(name)])
            listed = f"coalesce(list_contains({columns['_unchanged'][0]}, '{_text(name)}'), false)"
            found[f"u{i}"] = listed if "_unchanged" in columns else "false"
        return found

    # State

    @property
    def _toasts(self) -> list[str]:
        return [f"t{i}" for i in range(len(self.schema.toastable))]

    @property
    def _key_kinds(self) -> list[str]:
        return [_key_kind(self.schema.column(name).arrow_type) for name in self.schema.key]

    def rows(self, restricted: str) -> str:
        """Returns a query of the state's rows, with the columns of `base`. `restricted`: the end of a query of one table."""
        return (
            f"SELECT * FROM (WITH r AS (SELECT * FROM recent {restricted}), b AS (SELECT * FROM base {restricted}) "
            f"SELECT * FROM r UNION ALL SELECT * FROM b ANTI JOIN r USING ({self.key_list})) "
            f"WHERE NOT gone AND o > {self.truncated}"
        )

    def _follow_keys(self) -> None:
        """Gives rows under a new key the values that the log left out: those of the row that had the key before."""
        if not self._toasts:
            return
        moved = f"kind = '{_INSERT}' AND ({' OR '.join(f'u{i}' for i in range(len(self._toasts)))})"
        if not self.execute(f"SELECT 1 FROM fresh WHERE {moved} LIMIT 1"):
            return
        before = ", ".join(f"d.{name} AS from_{name}" for name in self.keys)
        self.execute(
            f"CREATE OR REPLACE TABLE moves AS SELECT DISTINCT {', '.join(f'i.{name}' for name in self.keys)}, i.o, {before} "
            f"FROM (SELECT * FROM fresh WHERE {moved}) i JOIN fresh d ON d.o = i.o - 1 AND d.kind = '{_DELETE}'"
        )
        at_origin = " AND ".join(f"h.{name} = m.from_{name}" for name in self.keys)
        origins = ", ".join(f"from_{name} AS {name}" for name in self.keys)
        moved_from = f"SEMI JOIN (SELECT {origins} FROM moves) USING ({self.key_list})"
        self.execute(f"CREATE OR REPLACE TABLE origins AS {self.rows(moved_from)}")
        known = " AND ".join(f"fresh.{name} = v.{name}" for name in self.keys)
        for i, hashed in enumerate(self._toasts):
            history = (
                f"SELECT {self.key_list}, o, u{i} AS is_open, coalesce({hashed}, 0) AS t FROM fresh "
                f"WHERE kind <> '{_DELETE}' AND (NOT u{i} OR kind = '{_INSERT}') "
                f"UNION ALL SELECT {self.key_list}, o, false, coalesce({hashed}, 0) FROM origins"
            )
            values = (
                f"SELECT {', '.join(f'm.{name}' for name in (*self.keys, 'o'))}, arg_max(h.is_open, h.o) AS is_open, "
                f"arg_max(h.t, h.o) AS t FROM moves m JOIN ({history}) h ON {at_origin} AND h.o < m.o - 1 "
                f"GROUP BY {', '.join(f'm.{name}' for name in (*self.keys, 'o'))}"
            )
            changed = 1
            while changed:  # once for each time that a row got another key
                ((changed,),) = self.execute(
                    f"UPDATE fresh SET {hashed} = v.t, u{i} = false FROM ({values}) v "
                    f"WHERE {known} AND fresh.o = v.o AND NOT v.is_open AND fresh.u{i} AND fresh.kind = '{_INSERT}'"
                )
            # Rows that are there twice have their values. What is unknown equals no value.
            self.execute(
                f"DELETE FROM fresh USING (FROM recent UNION ALL FROM base) v "
                f"WHERE {known} AND fresh.o <= v.o AND fresh.u{i} AND fresh.kind = '{_INSERT}'"
            )
            self.execute(f"UPDATE fresh SET {hashed} = 0, u{i} = false WHERE u{i} AND kind = '{_INSERT}'")

    def _fold(self) -> None:
        """Takes `fresh` into `recent`, and that into `base` once it is large."""
        kept = f"SELECT {self.key_list}, o, gone, {', '.join(self.hashes)}{self._all_there} FROM"
        flags = "".join(f", u{i}" for i in range(len(self._toasts)))
        sources = [
            f"SELECT {self.key_list}, o, kind = '{_DELETE}' AS gone, {', '.join(self.hashes)}{flags} FROM fresh",
            f"{kept} recent",
        ]
        if self._toasts:  # values that are left out are in the row before
            sources.append(f"{kept} base SEMI JOIN fresh USING ({self.key_list})")
        self._replace("recent", sources)
        ((recent,),) = self.execute("SELECT count(*) FROM recent")
        ((base,),) = self.execute("SELECT count(*) FROM base")
        if recent >= RECENT_ROWS and recent * RECENT_SHARE >= base:
            self._replace("base", [f"{kept} recent", f"{kept} base"], sort=True)
            self.execute("DELETE FROM recent")

    @property
    def _all_there(self) -> str:
        return "".join(f", false AS u{i}" for i in range(len(self._toasts)))

    def _replace(self, table: str, sources: Sequence[str], *, sort: bool = False) -> None:
        columns = ["max(o) AS o", "arg_max(gone, o) AS gone", "arg_max(d, o) AS d"]
        columns += [
            f"arg_max({name}, o) FILTER (NOT u{i} AND NOT gone) AS {name}" for i, name in enumerate(self._toasts)
        ]
        self.execute(
            f"CREATE OR REPLACE TABLE next AS SELECT {self.key_list}, {', '.join(columns)} "
            f"FROM ({' UNION ALL '.join(sources)}) GROUP BY {self.key_list}{' ORDER BY ALL' if sort else ''}"
        )
        self.execute(f"DROP TABLE {table}")
        self.execute(f"ALTER TABLE next RENAME TO {table}")


_FILE = "_tidemark_file"
_OPTIONS = f"hive_partitioning = false, filename = '{_FILE}'"
_JSON_OPTIONS = f"maximum_object_size = {32 << 20}"
_JSON_META = {"_change_type": "VARCHAR", "_commit_version": "BIGINT", "_seq": "INTEGER", "_unchanged": "VARCHAR[]"}


def _columns(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except pa.ArrowInvalid as error:
        raise SinkError(
            f"{path} can't be read: {error}.", "Restore it from a copy, or read the table again: signal resnapshot."
        ) from error


def _key_kind(arrow_type: str) -> str:
    """Returns DuckDB's type for a key's column. Integers are compared as such, all else as text."""
    kind = arrow_type_of(arrow_type)
    if pa.types.is_decimal(kind) and kind.scale == 0:
        return f"DECIMAL({kind.precision}, 0)"
    return "BIGINT" if pa.types.is_integer(kind) else "VARCHAR"


def _key_text(expression: str, kind: str, *, is_binary: bool) -> str:
    if kind == "JSON":
        text = f"({expression}->>'$')"
        return f"'0x' || lower(hex(from_base64({text})))" if is_binary else text
    return f"'0x' || lower(hex({expression}))" if kind == "BLOB" else _value_text(expression, kind)


def _value_text(expression: str, kind: str) -> str:
    """Returns an expression: a text that only this value of the column's type has; NULL for NULL."""
    if kind.endswith("[]"):
        element = _value_text("e", kind.removesuffix("[]"))
        sized = f"coalesce(strlen({element}) || ':' || {element}, 'N')"
        return f"'[' || array_to_string([{sized} for e in {expression}], ',')"
    match kind:
        case "JSON":
            return f"nullif(CAST({expression} AS VARCHAR), 'null')"
        case "BLOB":
            return f"hex({expression})"
        case "TIMESTAMP WITH TIME ZONE":
            return f"CAST(make_timestamp(epoch_us({expression})) AS VARCHAR) || 'Z'"
        case _:
            return f"CAST({expression} AS VARCHAR)"


def _hash(columns: Iterable[tuple[str, str] | None]) -> str:
    """Returns an expression: a hash of the columns' values. None for a column that the file does not have: it is NULL."""
    parts = ["'N'" if column is None else f"coalesce({_short_text(*column)}, 'N')" for column in columns]
    return f"md5_number(concat_ws(',', {', '.join(parts)}))" if parts else "md5_number('')"


def _short_text(expression: str, kind: str) -> str:
    """Returns an expression: a text without commas that only this value has, not N; NULL for NULL. Copies no long value."""
    if kind == "BLOB":
        return f"md5({expression})"
    text = _value_text(expression, kind)
    return f"md5({text})" if kind in {"VARCHAR", "JSON"} or kind.endswith("[]") else text


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return value.replace("'", "''")


def _without_wildcards(path: Path) -> str:
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))
