"""Random DDL for random tables."""

from collections.abc import Callable, Iterator

from tests.support.random_tables import COLUMN_NAMES, TABLE_NAMES, RandomTables
from tests.support.random_values import RandomColumn

Statements = Iterator[str]


def alter(tables: RandomTables) -> None:
    """Alters a table, or some, or creates one."""
    names, generator = tables.names(), tables.generator
    if not names:
        tables.execute(*tables.create(generator.choice(TABLE_NAMES)))
        return
    statements = _Ddl(tables, generator.choice(names), names).statements()
    tables.execute(*statements, together=tables.is_postgres and generator.random() < 0.2, odd=True)


class _Ddl:
    def __init__(self, tables: RandomTables, table: str, names: list[str]) -> None:
        self.tables, self.table, self.names, self.generator, self.q = tables, table, names, tables.generator, tables.q
        self.t, self.columns, self.key = tables.q(table), tables.columns(table), tables.key(table)
        self.others = [column for column in self.columns if column.name not in self.key]
        taken = {column.name for column in self.columns}
        self.new = self.q(self.generator.choice([name for name in COLUMN_NAMES if name not in taken] or ["zz"]))
        self.type = self.generator.choice(tables.types)
        self.unused = self.generator.choice([name for name in TABLE_NAMES if name not in names] or ["spare"])
        self.number = next(tables.numbers)

    def statements(self) -> list[str]:
        kinds: list[Callable[[], Statements]] = [
            self.add, self.add, self.add, self.drop, self.drop, self.drop_and_add, self.rename_column, self.other_type,
            self.other_type, self.swap_columns, self.rename, self.swap, self.create_again, self.create, self.create,
            self.truncate, self.rebuild, self.rebuild_beside, self.other_key, self.computed, self.storage,
            self.index_or_default, self.trigger, self.add_twice,
        ]  # fmt: skip
        kinds.append(self.unlogged if self.tables.is_postgres else self.partitions)
        return list(self.generator.choice(kinds)())

    def _other(self) -> RandomColumn | None:
        """A column outside of the key. None if the table would have no column to copy without it."""
        others = self.others if sum(not column.is_computed for column in self.columns) > 1 else []
        return self.generator.choice(others) if others else None

    def add(self) -> Statements:
        place = (
            ""
            if self.tables.is_postgres
            else self.generator.choice(("", "", " FIRST", f" AFTER {self.q(self.columns[0].name)}"))
        )
        yield f"ALTER TABLE {self.t} ADD COLUMN {self.new} {self.type}{place}"

    def add_twice(self) -> Statements:
        yield from self.add()
        yield from self.tables.changes_of(self.table)
        yield f"ALTER TABLE {self.t} ADD COLUMN more{self.number} {self.generator.choice(self.tables.types)}"

    def drop(self) -> Statements:
        if column := self._other():
            yield f"ALTER TABLE {self.t} DROP COLUMN {self.q(column.name)}"

    def drop_and_add(self) -> Statements:
        if column := self._other():
            yield f"ALTER TABLE {self.t} DROP COLUMN {self.q(column.name)}"
            yield f"ALTER TABLE {self.t} ADD COLUMN {self.q(column.name)} {self.type}"

    def rename_column(self) -> Statements:
        yield f"ALTER TABLE {self.t} RENAME COLUMN {self.q(self.generator.choice(self.columns).name)} TO {self.new}"

    def swap_columns(self) -> Statements:
        if len(self.others) > 1:
            a, b = (self.q(column.name) for column in self.generator.sample(self.others, 2))
            for old, new in ((a, "swap"), (b, a), ("swap", b)):
                yield f"ALTER TABLE {self.t} RENAME COLUMN {old} TO {new}"

    def other_type(self) -> Statements:
        column = self._other()
        if column is None:
            return
        name = self.q(column.name)
        if self.tables.is_postgres:
            bare = self.type.partition(" NOT")[0].partition(" DEFAULT")[0]
            using = self.generator.choice(("", "", f" USING NULL::{bare}", f" USING {name}::text::{bare}"))
            yield f"ALTER TABLE {self.t} ALTER COLUMN {name} TYPE {bare}{using}"
        else:
            yield f"ALTER TABLE {self.t} MODIFY {name} {self.type}{self.generator.choice(('', '', '', ' FIRST'))}"

    def rename(self) -> Statements:
        yield f"ALTER TABLE {self.t} RENAME TO {self.q(self.unused)}"

    def swap(self) -> Statements:
        others = [name for name in self.names if name != self.table]
        if others:
            other = self.q(self.generator.choice(others))
            steps = ((self.t, "swap"), (other, self.t), ("swap", other))
            if self.tables.is_postgres:
                yield from (f"ALTER TABLE {old} RENAME TO {new}" for old, new in steps)
            else:
                yield "RENAME TABLE " + ", ".join(f"{old} TO {new}" for old, new in steps)

    def create(self) -> Statements:
        yield from self.tables.create(self.unused)

    def create_again(self) -> Statements:
        yield f"DROP TABLE {self.t}"
        if self.generator.random() < 0.8:
            yield from self.tables.create(self.table)

    def truncate(self) -> Statements:
        yield f"TRUNCATE TABLE {self.t}"
        yield from self.tables.changes_of(self.table)

    def rebuild(self) -> Statements:
        if self.tables.is_postgres:
            yield f"VACUUM FULL {self.t}"
        else:
            yield self.generator.choice((f"OPTIMIZE TABLE {self.t}", f"ALTER TABLE {self.t} ENGINE=InnoDB, FORCE"))

    def rebuild_beside(self) -> Statements:
        """As tools for online schema changes do."""
        names = ", ".join(self.q(column.name) for column in self.columns if not column.is_computed)
        if self.tables.is_postgres:
            yield f"CREATE TABLE gho (LIKE {self.t} INCLUDING ALL)"
            if not self.key:
                yield "ALTER TABLE gho REPLICA IDENTITY FULL"
        else:
            yield f"CREATE TABLE gho LIKE {self.t}"
        yield f"ALTER TABLE gho ADD COLUMN {self.new} {self.type}"
        yield f"INSERT INTO gho ({names}) SELECT {names} FROM {self.t}"
        if self.tables.is_postgres:
            yield f"DROP TABLE {self.t}"
            yield f"ALTER TABLE gho RENAME TO {self.t}"
        else:
            yield f"RENAME TABLE {self.t} TO del, gho TO {self.t}"
            yield "DROP TABLE del"

    def other_key(self) -> Statements:
        if not self.key:
            return
        columns = ", ".join(sorted({*map(self.q, self.key), self.q(self.generator.choice(self.columns).name)}))
        if not self.tables.is_postgres:
            yield f"ALTER TABLE {self.t} DROP PRIMARY KEY, ADD PRIMARY KEY ({columns})"
            return
        ((name,),) = self.tables.database.query(
            "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", (self.t,)
        )
        yield f"ALTER TABLE {self.t} DROP CONSTRAINT {self.q(name)}, ADD PRIMARY KEY ({columns})"

    def computed(self) -> Statements:
        test = f"({self.q(self.generator.choice(self.columns).name)} IS NULL)"
        kind = "bool GENERATED ALWAYS" if self.tables.is_postgres else "INT"
        how = "STORED" if self.tables.is_postgres else self.generator.choice(("STORED", "VIRTUAL"))
        yield f"ALTER TABLE {self.t} ADD COLUMN computed{self.number} {kind} AS {test} {how}"

    def storage(self) -> Statements:
        if self.tables.is_postgres:
            identity = self.generator.choice(("FULL", "DEFAULT") if self.key else ("FULL",))
            yield self.generator.choice(
                (f"ALTER TABLE {self.t} REPLICA IDENTITY {identity}", "ALTER TYPE mood ADD VALUE IF NOT EXISTS 'z'")
            )
        else:
            yield f"ALTER TABLE {self.t} CONVERT TO CHARACTER SET {self.generator.choice(('latin1', 'utf8mb4'))}"

    def index_or_default(self) -> Statements:
        if column := self._other():
            name = self.q(column.name)
            yield f"CREATE INDEX i{self.number} ON {self.t} ({name})"
            yield f"ALTER TABLE {self.t} ALTER COLUMN {name} SET DEFAULT {self.tables.literal(column)}"

    def trigger(self) -> Statements:
        others = [name for name in self.names if name != self.table]
        if not others:
            return
        name = self.generator.choice(others)
        its = [column for column in self.tables.columns(name) if not column.is_computed]
        other, event, number = self.q(name), self.generator.choice(("INSERT", "UPDATE", "DELETE")), self.number
        act = self.generator.choice(
            (
                f"DELETE FROM {other} WHERE {self.q(its[0].name)} = {self.tables.literal(its[0], few=True)}",
                f"UPDATE {other} SET {self.q(its[-1].name)} = {self.tables.literal(its[-1])}",
            )
        )
        if self.tables.is_postgres:
            yield f"CREATE FUNCTION f{number}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {act}; RETURN NULL; END$$"
            act = f"EXECUTE FUNCTION f{number}()"
        yield f"CREATE TRIGGER tr{number} AFTER {event} ON {self.t} FOR EACH ROW {act}"

    def unlogged(self) -> Statements:
        yield f"ALTER TABLE {self.t} SET UNLOGGED"
        yield from self.tables.changes_of(self.table)
        yield f"ALTER TABLE {self.t} SET LOGGED"

    def partitions(self) -> Statements:
        columns = ", ".join(map(self.q, self.key))
        yield f"ALTER TABLE {self.t} PARTITION BY KEY ({columns}) PARTITIONS 3"
        if self.generator.random() < 0.3:
            yield f"ALTER TABLE {self.t} TRUNCATE PARTITION p1"
        if self.generator.random() < 0.5:
            yield f"ALTER TABLE {self.t} REMOVE PARTITIONING"
