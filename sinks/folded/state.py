"""The state that changes of a table fold to, as docs/sinks.md tells readers to fold them: the last change of each key.

DuckDB keeps a row for each key in a database of its own in a temporary folder: the key's columns, the place of its last change,
whether it is gone, and hashes of its values. No value but those of keys is kept, and DuckDB's memory is limited.

The caller loads changes into `fresh` (`hashing.change_kinds`), then calls `take_changes`. If the log may leave values out,
changes must come in the order of their epochs: such a value is that of the key's row before, or of the row whose key it was.
For a copy that has a row for each key and no history, it loads these rows, then calls `take_rows`.

Tables: `base` is sorted by key, so few of its blocks are read for a range of integers. `recent` has keys that changed since.
`fresh` has the changes that are being taken in.
"""

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark.sinks.folded.hashed_rows import HashedRows, ordinal
from tidemark.sinks.folded.hashing import (
    PLACE_KIND,
    RowHashing,
    change_kinds,
    hash_names,
    key_kinds,
    key_names,
    key_text,
    literal,
    selected,
    toast_names,
)
from tidemark.sinks.folded.temporary_folder import no_room, temporary_folder
from tidemark.state.change_batch import ChangeType
from tidemark.state.table import TableSchema, arrow_type_of

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "1GB"
RECENT_SHARE = 8
"""`recent` goes into `base` once it has this part of its keys, and at least RECENT_ROWS."""
RECENT_ROWS = 100_000
BATCH_ROWS = 1 << 16
_DELETE, _INSERT, _TRUNCATE = (int(kind) for kind in (ChangeType.DELETE, ChangeType.INSERT, ChangeType.TRUNCATE))
_SETTINGS = (
    f"memory_limit = '{MEMORY_LIMIT}'",
    "threads = 2",
    "preserve_insertion_order = false",
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    # Files of one name are staged again and again, and each file is read once.
    "enable_external_file_cache = false",
    "enable_progress_bar = false",
)


@dataclass(slots=True)
class FoldedState:
    """The state of one table. `copy`: how errors name the copy. `temporary`: its folder, also for what is kept beside it."""

    schema: TableSchema
    copy: str
    temporary: Path
    engine: "DuckDBPyConnection"
    seed: int
    """The seed of the hashes."""
    truncated: int = field(default=-1, init=False)
    """The place of the table's last TRUNCATE: rows before it are ignored."""
    log_place: int = field(default=-1, init=False)
    """The place of the last change of the log that was taken in."""

    @classmethod
    @contextmanager
    def opened(cls, schema: TableSchema, copy: str) -> Iterator["FoldedState"]:
        """Raises SinkError if there is no room for it."""
        import duckdb

        kinds = [f"{name} {kind}" for name, kind in zip(key_names(schema), key_kinds(schema), strict=True)]
        kinds += [f"o {PLACE_KIND}", "gone BOOLEAN", *(f"{name} UBIGINT" for name in hash_names(schema))]
        with temporary_folder(schema.table) as temporary, ExitStack() as stack:
            with _errors(schema, copy, temporary):
                engine = stack.enter_context(duckdb.connect(str(temporary / "folded.duckdb")))
                for setting in (*_SETTINGS, f"temp_directory = {literal(str(temporary / 'spilled'))}"):
                    engine.execute(f"SET {setting}")
                for table in ("base", "recent"):
                    engine.execute(f"CREATE TABLE {table} ({', '.join(kinds)})")
            yield cls(schema, copy, temporary, engine, secrets.randbits(64))

    @property
    def hashing(self) -> RowHashing:
        return RowHashing(self.schema, self.seed)

    @property
    def keys(self) -> list[str]:
        """The names of the key's columns in the tables here."""
        return key_names(self.schema)

    @property
    def key_list(self) -> str:
        return ", ".join(self.keys)

    @property
    def no_key(self) -> str:
        """The condition that a column of the key is NULL."""
        return " OR ".join(f"{name} IS NULL" for name in self.keys)

    def key_column(self, name: str) -> str:
        return f"k{self.schema.key.index(name)}"

    @property
    def hashes(self) -> list[str]:
        return hash_names(self.schema)

    @property
    def _toasts(self) -> list[str]:
        return toast_names(self.schema)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Raises SinkError. Its message has no value of a row."""
        with self._errors():
            return self.engine.execute(statement).fetchall()

    def read(self, query: str) -> Iterator[pa.RecordBatch]:
        """Yields the rows. Other statements may be executed meanwhile. Raises SinkError as `execute` does."""
        with closing(self.engine.cursor()) as cursor:
            with self._errors():
                batches = cursor.execute(query).to_arrow_reader(BATCH_ROWS)
            while True:
                with self._errors():
                    batch = next(batches, None)
                if batch is None:
                    return
                yield batch

    def _errors(self) -> AbstractContextManager[None]:
        return _errors(self.schema, self.copy, self.temporary)

    def create(self, table: str) -> None:
        """Creates an empty table of changes (`hashing.change_kinds`), in place of one of this name."""
        kinds = ", ".join(f"{name} {kind}" for name, kind in change_kinds(self.schema).items())
        self.execute(f"CREATE OR REPLACE TABLE {table} ({kinds})")

    def insert(self, table: str, changes: pa.Table) -> None:
        """Adds changes as `RowHashing` or `selected` returns them to a table."""
        self.engine.register("changes", changes)
        try:
            described = self.execute("DESCRIBE changes")
            kinds = [kind for name, kind, *_ in described if name in self.keys]
            self.execute(f"INSERT INTO {table} SELECT {selected(self.schema, kinds)} FROM changes")
        finally:
            self.engine.unregister("changes")

    def key_texts(self, changes: pa.Table) -> list[tuple[str, ...]]:
        """Returns the keys of changes as `RowHashing` returns them, as texts."""
        self.engine.register("changes", changes.select(self.keys))
        try:
            described = self.execute("DESCRIBE changes")
            kinds = {name: kind for name, kind, *_ in described}
            texts = ", ".join(f"CAST({key_text(name, kinds[name])} AS VARCHAR)" for name in self.keys)
            return self.execute(f"SELECT {texts} FROM changes")
        finally:
            self.engine.unregister("changes")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def rows(self, restricted: str) -> str:
        """Returns a query of the state's rows, with the columns of `base`. `restricted`: the end of a query of one table."""
        return (
            f"SELECT * FROM (WITH r AS (SELECT * FROM recent {restricted}), b AS (SELECT * FROM base {restricted}) "
            f"SELECT * FROM r UNION ALL SELECT * FROM b ANTI JOIN r USING ({self.key_list})) "
            f"WHERE NOT gone AND o > CAST({self.truncated} AS {PLACE_KIND})"
        )

    def rows_between(self, least: int, greatest: int) -> list[HashedRows]:
        """Returns the last known changes of the keys whose leading column, an integer, is in this range (`ordinals`), also
        deletions. Raises NoOrdinalError."""
        ((is_empty,),) = self.execute("SELECT (SELECT count(*) FROM recent) + (SELECT count(*) FROM base) = 0")
        if is_empty:
            return []
        kind = arrow_type_of(self.schema.column(self.schema.key[0]).arrow_type)
        bounds = " AND ".join(
            f"k0 {operator} {number - ordinal(0, kind)}" for operator, number in ((">=", least), ("<=", greatest))
        )
        columns = f"{self.key_list}, o, gone, {', '.join(self.hashes)}"
        query = f"SELECT {columns} FROM recent WHERE {bounds} UNION ALL SELECT {columns} FROM base WHERE {bounds}"
        return [HashedRows.of(pa.table(batch), self.schema) for batch in self.read(query) if batch.num_rows]

    def take_changes(self) -> None:
        """Takes the changes in `fresh` in, and drops that table."""
        ((truncated, last),) = self.execute(
            f"SELECT max(o) FILTER (kind = {_TRUNCATE}), max(o) FILTER (is_logged) FROM fresh"
        )
        if truncated is not None and truncated > self.truncated:
            self.truncated = int(truncated)
            for table in ("base", "recent"):  # a value that the log leaves out is never that of such a row
                self.execute(f"DELETE FROM {table} WHERE o <= {self.truncated}")
        self.log_place = max(self.log_place, -1 if last is None else int(last))
        self.execute(f"DELETE FROM fresh WHERE kind = {_TRUNCATE} OR o <= {self.truncated} OR {self.no_key}")
        self._follow_keys()
        self._fold()
        self.execute("DROP TABLE fresh")

    def take_rows(self, wanted: str | None = None) -> None:
        """Takes the rows in `fresh` for the state, and drops that table. `wanted`: a table of the keys that they belong to; all
        other rows stay. None: there are no others. A key that has several rows gets a hash that no single row has."""
        rows = (
            f"SELECT {self.key_list}, max(o) AS o, false AS gone, CASE WHEN count(*) = 1 THEN max(d) "
            f"ELSE hash(count(*), min(d), max(d)) END AS d "
            f"FROM fresh WHERE NOT ({self.no_key}) GROUP BY {self.key_list}"
        )
        if wanted is None:
            self.execute(f"CREATE OR REPLACE TABLE next AS {rows} ORDER BY ALL")
            self._rename_next("base")
        else:
            same = " AND ".join(f"base.{name} = {wanted}.{name}" for name in self.keys)
            self.execute(f"DELETE FROM base USING {wanted} WHERE {same}")
            self.execute(f"INSERT INTO base {rows}")
        self.execute("DROP TABLE fresh")

    def leaves_values_out(self) -> bool:
        """Returns whether a change in `fresh` leaves a value out."""
        flags = " OR ".join(f"u{i}" for i in range(len(self._toasts)))
        return bool(flags and self.execute(f"SELECT 1 FROM fresh WHERE {flags} LIMIT 1"))

    def _follow_keys(self) -> None:
        """Gives rows under a new key the values that the log left out: those of the row that had the key before."""
        if not self._toasts:
            return
        moved = f"kind = {_INSERT} AND ({' OR '.join(f'u{i}' for i in range(len(self._toasts)))})"
        if not self.execute(f"SELECT 1 FROM fresh WHERE {moved} LIMIT 1"):
            return
        before = ", ".join(f"d.{name} AS from_{name}" for name in self.keys)
        self.execute(
            f"CREATE OR REPLACE TABLE moves AS SELECT DISTINCT {', '.join(f'i.{name}' for name in self.keys)}, i.o, {before} "
            f"FROM (SELECT * FROM fresh WHERE {moved}) i JOIN fresh d ON d.o = i.o - 1 AND d.kind = {_DELETE}"
        )
        at_origin = " AND ".join(f"h.{name} = m.from_{name}" for name in self.keys)
        origins = ", ".join(f"from_{name} AS {name}" for name in self.keys)
        moved_from = f"SEMI JOIN (SELECT {origins} FROM moves) USING ({self.key_list})"
        self.execute(f"CREATE OR REPLACE TABLE origins AS {self.rows(moved_from)}")
        known = " AND ".join(f"fresh.{name} = v.{name}" for name in self.keys)
        for i, hashed in enumerate(self._toasts):
            history = (
                f"SELECT {self.key_list}, o, u{i} AS is_open, coalesce({hashed}, 0) AS t FROM fresh "
                f"WHERE kind <> {_DELETE} AND (NOT u{i} OR kind = {_INSERT}) "
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
                    f"WHERE {known} AND fresh.o = v.o AND NOT v.is_open AND fresh.u{i} AND fresh.kind = {_INSERT}"
                )
            # Rows that are there twice have their values. What is unknown equals no value.
            self.execute(
                f"DELETE FROM fresh USING (FROM recent UNION ALL FROM base) v "
                f"WHERE {known} AND fresh.o <= v.o AND fresh.u{i} AND fresh.kind = {_INSERT}"
            )
            self.execute(f"UPDATE fresh SET {hashed} = 0, u{i} = false WHERE u{i} AND kind = {_INSERT}")

    def _fold(self) -> None:
        """Takes `fresh` into `recent`, or both into `base` if they are many."""
        kept = f"SELECT {self.key_list}, o, gone, {', '.join(self.hashes)}{self._all_there} FROM"
        flags = "".join(f", u{i}" for i in range(len(self._toasts)))
        sources = [
            f"SELECT {self.key_list}, o, kind = {_DELETE} AS gone, {', '.join(self.hashes)}{flags} FROM fresh",
            f"{kept} recent",
        ]
        ((more,),) = self.execute("SELECT (SELECT count(*) FROM fresh) + (SELECT count(*) FROM recent)")
        ((base,),) = self.execute("SELECT count(*) FROM base")
        if more >= RECENT_ROWS and more * RECENT_SHARE >= base:
            self._replace("base", [*sources, f"{kept} base"], sort=True)
            self.execute("DELETE FROM recent")
            return
        if self.leaves_values_out():  # they are in the row before
            sources.append(f"{kept} base SEMI JOIN fresh USING ({self.key_list})")
        self._replace("recent", sources)

    @property
    def _all_there(self) -> str:
        return "".join(f", false AS u{i}" for i in range(len(self._toasts)))

    def _replace(self, table: str, sources: Sequence[str], *, sort: bool = False) -> None:
        rows, order = f"({' UNION ALL '.join(sources)})", " ORDER BY ALL" if sort else ""
        if self.leaves_values_out():
            columns = ["max(o) AS o", "arg_max(gone, o) AS gone", "arg_max(d, o) AS d"]
            columns += [
                f"arg_max({name}, o) FILTER (NOT u{i} AND NOT gone) AS {name}" for i, name in enumerate(self._toasts)
            ]
            last = f"SELECT {self.key_list}, {', '.join(columns)} FROM {rows} GROUP BY {self.key_list}"
        else:  # half as expensive
            last = (
                f"SELECT {self.key_list}, o, gone, {', '.join(self.hashes)} FROM {rows} "
                f"QUALIFY row_number() OVER (PARTITION BY {self.key_list} ORDER BY o DESC) = 1"
            )
        self.execute(f"CREATE OR REPLACE TABLE next AS {last}{order}")
        self._rename_next(table)

    def _rename_next(self, table: str) -> None:
        self.execute(f"DROP TABLE {table}")
        self.execute(f"ALTER TABLE next RENAME TO {table}")


@contextmanager
def _errors(schema: TableSchema, copy: str, temporary: Path) -> Iterator[None]:
    import duckdb

    try:
        yield
    except (duckdb.Error, pa.ArrowException) as error:
        text = re.split(r"[\"'(0-9]", str(error), maxsplit=1)[0].strip()  # what follows may quote a row
        raise no_room(f"{copy} can't be compared: {text} ….", temporary.parent, schema.table) from error
