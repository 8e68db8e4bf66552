"""Where the copies stand: folders below one folder, or tables of a catalog. SQL has a name for either, `relation`, by which
they are created, read and written.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from conf.sink import DeltaSink as DeltaSettings
from conf.tables import TableName, TableTemplate
from sinks.delta.faults import spark_errors
from sinks.delta.settings import DELTA_CATALOG, SESSION_CATALOG
from sinks.files import local_folder, scheme_of, table_folder_name, unwritable
from sinks.sink import Finding
from state.table import TableId, TableSchema

JOB_NAME, JOB_UUID = "tidemark.job", "tidemark.job_uuid"
"""Properties of a table that say whose it is."""
_NAME_OF_SESSION_CATALOG = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Place:
    """Of one table. `setting` is where the job file says so."""

    text: str
    relation: str
    setting: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Found:
    """A Delta table that stands in a copy's place. `table_id` is Delta's: that of no other table, wherever it is moved."""

    table_id: str
    columns: StructType
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Occupied:
    """By something else than a Delta table: what follows the place's name in a sentence."""

    text: str


class Lake(Protocol):
    """All places of a job's copies. Raises SinkError where Spark can't look."""

    def place_of(self, table: TableId) -> Place: ...

    def findings(self, session: SparkSession, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
        """Of the whole, and of tables that have no place of their own."""

    def holds(self, session: SparkSession, place: Place) -> bool:
        """A table is there."""

    def look(self, session: SparkSession, place: Place) -> Found | Occupied | None: ...

    def make_room(self, session: SparkSession, table: TableId) -> None:
        """Creates what the copy needs around it."""


def lake_of(settings: DeltaSettings) -> Lake:
    """Raises JobFileError for a `file:` URI that names a host."""
    if settings.catalog is not None:
        return CatalogLake(settings.catalog, settings.table)
    assert settings.path is not None, "the job file has one of the two"
    return FolderLake(_root(settings.path))


def _root(path: str) -> str:
    return str(local_folder(path)) if scheme_of(path) in {"", "file"} else path.rstrip("/")


@dataclass(frozen=True, slots=True)
class FolderLake:
    """`root`: an absolute path, or a URI of a filesystem that Spark's Hadoop has."""

    root: str

    def place_of(self, table: TableId) -> Place:
        text = f"{self.root}/{table_folder_name(table)}"
        return Place(text, f"delta.{quoted(text)}", "sink.path")

    def findings(self, session: SparkSession, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
        if not scheme_of(self.root):
            yield from unwritable(Path(self.root))

    def holds(self, session: SparkSession, place: Place) -> bool:
        jvm: Any = session._jvm
        with spark_errors(place):
            return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(session._jsparkSession, place.text))

    def look(self, session: SparkSession, place: Place) -> Found | Occupied | None:
        if self.holds(session, place):
            return _found(session, place)
        jvm: Any = session._jvm
        with spark_errors(place):
            path = jvm.org.apache.hadoop.fs.Path(place.text)
            system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
            is_free = not system.exists(path) or len(system.listStatus(path)) == 0
        return None if is_free else Occupied("holds files, but no Delta table")

    def make_room(self, session: SparkSession, table: TableId) -> None:
        """Delta creates folders."""


@dataclass(frozen=True, slots=True)
class CatalogLake:
    """Tables of the catalog `name`, managed by it."""

    name: str
    template: TableTemplate

    def place_of(self, table: TableId) -> Place:
        names = self._names(table)
        relation = ".".join(map(quoted, (self.name, *names)))
        return Place(".".join((self.name, *names)), relation, "sink.table")

    def _names(self, table: TableId) -> tuple[str, str]:
        schema, name = self.template.target(TableName(table.database, table.name))
        assert schema is not None, "the job file's template has one"
        return schema, name

    def _schema(self, name: str) -> str:
        return f"{quoted(self.name)}.{quoted(name)}"

    def findings(self, session: SparkSession, schemas: Sequence[TableSchema]) -> Iterator[Finding]:
        with spark_errors(f"Catalog {self.name}"):
            session.newSession().catalog.setCurrentCatalog(self.name)
        is_sparks = self.name == SESSION_CATALOG and session.conf.get(f"spark.sql.catalog.{self.name}") == DELTA_CATALOG
        if is_sparks and session.conf.get("spark.sql.catalogImplementation") == "in-memory":
            yield Finding(
                None,
                f"{self.name} is in memory here: its tables would be forgotten when Spark ends.",
                "Give Spark a metastore (spark.conf: {spark.sql.catalogImplementation: hive}), or write to a sink.path.",
            )
        apart: defaultdict[tuple[str, ...], list[TableId]] = defaultdict(list)
        for schema in schemas:
            names = self._names(schema.table)
            apart[tuple(name.lower() for name in names)].append(schema.table)
            for name in names:
                if is_sparks and not _NAME_OF_SESSION_CATALOG.fullmatch(name):
                    yield Finding(
                        schema.table,
                        f"{self.name} takes names of letters, digits and _ only, not {name!r}.",
                        "Choose another place by sink.table, leave that table out, or write to a sink.path.",
                    )
        for tables in apart.values():
            if len(tables) > 1:
                listed = " and ".join(sorted(map(str, tables)))
                text = f"{listed} would be written into one table: catalogs don't tell case apart."
                yield Finding(None, text, "Tell them apart in sink.table, or leave one of them out.")
        for name in dict.fromkeys(self._names(schema.table)[0] for schema in schemas):
            if not self._has_schema(session, name):
                yield Finding(None, f"schema {self.name}.{name} will be created")

    def _has_schema(self, session: SparkSession, name: str) -> bool:
        with spark_errors(f"Catalog {self.name}"):
            return session.catalog.databaseExists(self._schema(name))

    def holds(self, session: SparkSession, place: Place) -> bool:
        with spark_errors(place):
            return session.catalog.tableExists(place.relation)

    def look(self, session: SparkSession, place: Place) -> Found | Occupied | None:
        if not self.holds(session, place):
            return None
        with spark_errors(place):
            kind = session.catalog.getTable(place.relation).tableType
        return Occupied("is a view") if "VIEW" in kind else _found(session, place)

    def make_room(self, session: SparkSession, table: TableId) -> None:
        name, _ = self._names(table)
        if not self._has_schema(session, name):
            with spark_errors(f"Schema {self.name}.{name}"):
                session.sql(f"CREATE SCHEMA IF NOT EXISTS {self._schema(name)}")


def _found(session: SparkSession, place: Place) -> Found | Occupied:
    with spark_errors(place):
        detail = session.sql(f"DESCRIBE DETAIL {place.relation}").collect()[0]
        if detail["format"] != "delta":
            return Occupied(f"is a table of the format {detail['format']}")
        rows = session.table(place.relation)
        owned = JOB_UUID in detail["properties"]
        return Found(
            table_id=detail["id"],
            columns=rows.schema,
            partition_columns=tuple(detail["partitionColumns"]),
            properties=detail["properties"],
            is_empty=not owned and rows.isEmpty(),
        )


def owner_of(session: SparkSession, place: Place) -> str | None:
    """The uuid of the job that the table at `place` belongs to, without a Spark job."""
    with spark_errors(place):
        rows = session.sql(f"SHOW TBLPROPERTIES {place.relation}").collect()
    return next((row["value"] for row in rows if row["key"] == JOB_UUID), None)


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
