"""The locations of a job's copies: folders below one folder, or tables of a catalog.

SQL has a name for both, the `relation`, which is used to create, read and write them.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import Row, SparkSession
from pyspark.sql.types import StructType

from tidemark.conf.sink import DeltaSink as DeltaSettings
from tidemark.conf.tables import FOLDER_TEMPLATE, TableName, TableTemplate
from tidemark.sinks.delta.errors import spark_errors
from tidemark.sinks.delta.settings import DELTA_CATALOG, SESSION_CATALOG
from tidemark.sinks.files.sink import folder_problems, local_folder, scheme_of, table_folder_name, unwritable
from tidemark.sinks.sink import Finding
from tidemark.state.errors import CopySetBackError
from tidemark.state.remedies import ONE_NAME, START_OVER
from tidemark.state.table import TableId, TableSchema

JOB_NAME, JOB_UUID = "tidemark.job", "tidemark.job_uuid"
"""Properties of a table that name its owner."""
_NAME_OF_SESSION_CATALOG = re.compile(r"[A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True)
class Location:
    """The location of one table's copy. `setting`: the key of the job file that chooses it. `names`: its catalog, its namespace
    there, its name."""

    text: str
    names: tuple[str, str, str]
    relation: str
    setting: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Found:
    """An existing Delta table at a copy's location. `table_id`: Delta's unique id, which a table keeps when it is moved.
    `generates`: Delta computes values of some columns (GENERATED, also AS IDENTITY), or that is not known."""

    table_id: str
    columns: StructType
    partition_columns: tuple[str, ...]
    properties: Mapping[str, str]
    is_empty: bool
    generates: bool = False


@dataclass(frozen=True, slots=True)
class Occupied:
    """Something else than a Delta table is at the location. `text` follows the location's name in a sentence."""

    text: str


class Lake(Protocol):
    """All locations of a job's copies. Methods raise SinkError if Spark can't read there."""

    def location_of(self, table: TableId) -> Location: ...

    def findings(self, session: Callable[[], SparkSession], schemas: Sequence[TableSchema]) -> Iterator[Finding]:
        """Yields problems of the whole, and of tables that have no location of their own. `session` starts Spark if it must."""

    def is_absent(self, location: Location) -> bool:
        """True if it is known without Spark that nothing is there."""

    def holds(self, session: SparkSession, location: Location) -> bool:
        """True if a table is there."""

    def look(self, session: SparkSession, location: Location) -> Found | Occupied | None: ...

    def create_schema_of(self, session: SparkSession, table: TableId) -> None:
        """Creates the schema that the copy needs."""

    def log_folder(self, location: Location) -> Path | None:
        """Returns the folder of the table's log. None if this process may not see it, or not all of the log is there."""


_RULES = ("delta.generationExpression", "delta.identity.")
"""How names begin, in the metadata of a column of which Delta computes the values."""
_EPOCH_METADATA = re.compile(r"tidemark epoch (\d+)(?: after (\d+))?( whole)?")
"""The metadata of a commit that wrote an epoch."""
HISTORY_COMMITS = 100
"""The newest commits, which are looked at first. Usually an epoch is among them."""


def lake_of(settings: DeltaSettings) -> Lake:
    """Returns the locations for a job file's `sink`. Raises JobFileError for a `file:` URI that names a host."""
    if settings.catalog is not None:
        return CatalogLake(settings.catalog, settings.copies)
    assert settings.path is not None, "the job file has one of the two"
    return FolderLake(_root(settings.path), settings.copies)


def _root(path: str) -> str:
    return str(local_folder(path)) if scheme_of(path) in {"", "file"} else path.rstrip("/")


@dataclass(frozen=True, slots=True)
class FolderLake:
    """Folders below `root`: an absolute path, or a URI of a filesystem that Hadoop knows."""

    root: str
    copies: TableTemplate = FOLDER_TEMPLATE

    def location_of(self, table: TableId) -> Location:
        text = f"{self.root}/{table_folder_name(table, self.copies)}"
        return Location(text, (SESSION_CATALOG, "delta", text), f"delta.{quoted(text)}", "sink.path")

    def findings(self, session: Callable[[], SparkSession], schemas: Sequence[TableSchema]) -> Iterator[Finding]:
        if not scheme_of(self.root):
            yield from unwritable(Path(self.root))
        yield from folder_problems(self.copies, schemas)

    def is_absent(self, location: Location) -> bool:
        return not scheme_of(self.root) and not Path(location.text).exists()

    def holds(self, session: SparkSession, location: Location) -> bool:
        jvm: Any = session._jvm
        with spark_errors(location):
            return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(session._jsparkSession, location.text))

    def look(self, session: SparkSession, location: Location) -> Found | Occupied | None:
        if self.holds(session, location):
            return _found(session, location)
        jvm: Any = session._jvm
        with spark_errors(location):
            path = jvm.org.apache.hadoop.fs.Path(location.text)
            system = path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
            is_free = not system.exists(path) or len(system.listStatus(path)) == 0
        return None if is_free else Occupied("has files, but is not a Delta table")

    def create_schema_of(self, session: SparkSession, table: TableId) -> None:
        """Does nothing: Delta creates folders."""

    def log_folder(self, location: Location) -> Path | None:
        return None if scheme_of(self.root) else Path(location.text, "_delta_log")


@dataclass(frozen=True, slots=True)
class CatalogLake:
    """Managed tables of the catalog `name`."""

    name: str
    template: TableTemplate

    def location_of(self, table: TableId) -> Location:
        names = self._names(table)
        relation = ".".join(map(quoted, (self.name, *names)))
        return Location(".".join((self.name, *names)), (self.name, *names), relation, "sink.table")

    def _names(self, table: TableId) -> tuple[str, str]:
        schema, name = self.template.target(TableName(table.database, table.name))
        assert schema is not None, "the job file's template has one"
        return schema, name

    def _schema(self, name: str) -> str:
        return f"{quoted(self.name)}.{quoted(name)}"

    def findings(self, session: Callable[[], SparkSession], schemas: Sequence[TableSchema]) -> Iterator[Finding]:
        spark = session()
        with spark_errors(f"Catalog {self.name}"):
            spark.newSession().catalog.setCurrentCatalog(self.name)
        is_sparks = self.name == SESSION_CATALOG and spark.conf.get(f"spark.sql.catalog.{self.name}") == DELTA_CATALOG
        if is_sparks and spark.conf.get("spark.sql.catalogImplementation") == "in-memory":
            yield Finding(
                None,
                f"{self.name} is in memory here: its tables would be lost when Spark ends.",
                "Give Spark a metastore (spark.conf: {spark.sql.catalogImplementation: hive}), or write to a sink.path.",
            )
        apart: defaultdict[tuple[str, ...], list[TableId]] = defaultdict(list)
        for schema in schemas:
            names = self._names(schema.table)
            apart[tuple(name.lower() for name in names)].append(schema.table)
            if not all(names):
                text = f"sink.rename leaves nothing of the name of {schema.table}."
                yield Finding(schema.table, text, "Correct sink.rename.")
                continue
            for name in names:
                if is_sparks and not _NAME_OF_SESSION_CATALOG.fullmatch(name):
                    yield Finding(
                        schema.table,
                        f"{self.name} allows only letters, digits and _ in names, not {name!r}.",
                        "Choose another name by sink.table or sink.rename, leave that table out, or write to a "
                        "sink.path.",
                    )
        for tables in apart.values():
            if len(tables) > 1:
                listed = " and ".join(sorted(map(str, tables)))
                text = f"{listed} would be written into one table: names in catalogs are not case-sensitive."
                yield Finding(None, text, ONE_NAME)
        for name in dict.fromkeys(self._names(schema.table)[0] for schema in schemas):
            if not self._has_schema(spark, name):
                yield Finding(None, f"schema {self.name}.{name} will be created")

    def is_absent(self, location: Location) -> bool:
        return False  # only Spark knows the catalog

    def _has_schema(self, session: SparkSession, name: str) -> bool:
        with spark_errors(f"Catalog {self.name}"):
            return session.catalog.databaseExists(self._schema(name))

    def holds(self, session: SparkSession, location: Location) -> bool:
        with spark_errors(location):
            return session.catalog.tableExists(location.relation)

    def look(self, session: SparkSession, location: Location) -> Found | Occupied | None:
        if not self.holds(session, location):
            return None
        with spark_errors(location):
            kind = session.catalog.getTable(location.relation).tableType
        return Occupied("is a view") if "VIEW" in kind else _found(session, location)

    def create_schema_of(self, session: SparkSession, table: TableId) -> None:
        name, _ = self._names(table)
        if not self._has_schema(session, name):
            with spark_errors(f"Schema {self.name}.{name}"):
                session.sql(f"CREATE SCHEMA IF NOT EXISTS {self._schema(name)}")

    def log_folder(self, location: Location) -> Path | None:
        return None


def _found(session: SparkSession, location: Location) -> Found | Occupied:
    with spark_errors(location):
        facts = _metadata_of(_loaded(session, location))
        if facts is None:
            detail = session.sql(f"DESCRIBE DETAIL {location.relation}").collect()[0]  # counts the table's files
            if detail["format"] != "delta":
                return Occupied(f"is a table of the format {detail['format']}")
            facts = {**detail.asDict(), "configuration": detail["properties"]}
        rows = session.table(location.relation)
        owned = JOB_UUID in facts["configuration"]
        return Found(
            table_id=facts["id"],
            columns=rows.schema,
            partition_columns=tuple(facts["partitionColumns"]),
            properties=facts["configuration"],
            is_empty=not owned and rows.isEmpty(),
            generates="schemaString" not in facts or _has_rules(facts["schemaString"]),
        )


def _has_rules(schema: str) -> bool:
    """True if the schema of a `metaData` action has a generated or identity column. The columns that Spark tells lack that."""
    return any(name.startswith(_RULES) for field in json.loads(schema)["fields"] for name in field["metadata"])


def _metadata_of(table: Any) -> Mapping[str, Any] | None:
    """Returns the newest `metaData` action of a `DeltaTableV2`: github.com/delta-io/delta/blob/master/PROTOCOL.md. None if
    `table` is none."""
    try:
        text = table.update().metadata().json()
    except Py4JJavaError:
        raise
    except Py4JError:  # there is no such method
        return None
    metadata: Mapping[str, Any] = json.loads(text)["metaData"]
    return metadata


@dataclass(frozen=True, slots=True)
class Head:
    """A table's newest version. `owner`: the uuid of its job, None without one. `may_lack_epochs`: False if its commit is the
    table's first, or wrote an epoch right after a version that lacked none. `partitioned_by`: columns."""

    owner: str | None
    version: int
    may_lack_epochs: bool
    partitioned_by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpochCommit:
    """A commit's metadata about the epoch that it wrote.

    `after`: the version at which the writer made sure that the table lacked no epoch; None in commits of earlier versions of
    Tidemark. `is_whole`: the commit replaced all rows. In a changelog, and in a table that keeps deleted rows: a TRUNCATE
    precedes all rows, which are read again."""

    epoch: int
    after: int | None
    is_whole: bool

    def __str__(self) -> str:
        after = "" if self.after is None else f" after {self.after}"
        return f"tidemark epoch {self.epoch}{after}{' whole' if self.is_whole else ''}"

    def proves(self, version: int) -> bool:
        """True if the table lacks no epoch at `version`, which this commit made: nobody has written in between."""
        return self.is_whole or self.after == version - 1

    def may_lack_epochs(self, version: int) -> bool:
        """False for commits of earlier versions of Tidemark, too."""
        return self.after is not None and not self.proves(version)


def head_of(session: SparkSession, location: Location) -> Head:
    """Looks at the newest version of the table that is there, without a query if Delta's table in Spark's catalog tells that
    version."""
    with spark_errors(location):
        table = _loaded(session, location)
        newest = _newest_of(session, table)
        owner = table.properties().get(JOB_UUID)
        partitioned_by = tuple(part.references()[0].fieldNames()[0] for part in table.partitioning())
    if newest is None:
        (last,) = _commits(session, location, " LIMIT 1")
        version, metadata = int(last["version"]), last["userMetadata"]
    else:
        version, metadata = newest[0], newest[1].get("userMetadata")
    of = _epoch_of(metadata)
    may_lack = version != 0 and (of is None or of.may_lack_epochs(version))
    return Head(owner, version, may_lack, partitioned_by)


def _loaded(session: SparkSession, location: Location) -> Any:
    """Returns the `org.apache.spark.sql.connector.catalog.Table`."""
    jvm: Any = session._jvm
    # Spark asks the settings of the thread's active session which class spark_catalog is: Delta's or its own.
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(session._jsparkSession)
    catalog, namespace, name = location.names
    gateway: Any = session.sparkContext._gateway
    namespaces = gateway.new_array(jvm.java.lang.String, 1)
    namespaces[0] = namespace
    identifier = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespaces, name)
    return session._jsparkSession.sessionState().catalogManager().catalog(catalog).loadTable(identifier)


def _newest_of(session: SparkSession, table: Any) -> tuple[int, Mapping[str, Any]] | None:
    """Returns the newest version of a `DeltaTableV2`, and what its log has of the commit in the first line of its file:
    github.com/delta-io/delta/blob/master/PROTOCOL.md. None if `table` is none, or the line is another one.

    Delta lists the log each time, even if `spark.databricks.delta.stalenessLimit` allows an older list. After this call, the
    table's `properties()` belong to that version or a later one. Its `version()` is always null (Delta 4.4.0)."""
    try:
        version = int(table.update().version())
        log = table.deltaLog()
        settings = log.newDeltaHadoopConf()  # with the catalog's credentials for this table
        file = log.logPath().suffix(f"/{version:020d}.json")
    except Py4JJavaError:
        raise
    except Py4JError:  # there is no such method
        return None
    system = file.getFileSystem(settings)
    if not system.exists(file):
        return None
    jvm: Any = session._jvm
    lines = jvm.java.io.BufferedReader(jvm.java.io.InputStreamReader(system.open(file), "UTF-8"))
    try:
        first = lines.readLine()
    finally:
        lines.close()
    commit = json.loads(first).get("commitInfo") if first else None
    return None if commit is None else (version, commit)


@dataclass(frozen=True, slots=True)
class LastEpoch:
    """The newest epoch that wrote to a table, and its version of the table. Both are 0 if no commit that Delta's log still has
    is an epoch's. `set_back`: RESTORE has taken epochs out of the table, or commits that the log no longer has, and no commit
    since then is whole (`EpochCommit`). `is_repairable`: nothing was written after that, so that RESTORE can put them back.
    `newest`: the table's newest version."""

    epoch: int
    version: int
    set_back: bool
    is_repairable: bool = True
    newest: int = 0


def last_epoch(session: SparkSession, location: Location) -> LastEpoch | None:
    """Looks at the table's newest commit, then at its newest ones, and at all of them if these do not tell. None if the log
    has no epoch, and the table may have some: it keeps commits for 30 days. Runs no Spark job."""
    with spark_errors(location):
        head = _newest_of(session, _loaded(session, location))
    if head is not None:
        version, commit = head
        of = _epoch_of(commit.get("userMetadata"))
        if of is not None and of.proves(version):
            return LastEpoch(of.epoch, version, set_back=False, newest=version)
    commits = _commits(session, location, f" LIMIT {HISTORY_COMMITS}")
    are_all = bool(commits) and commits[-1]["version"] == 0
    last = _last_epoch(commits, is_whole=are_all)
    if last is None and not are_all:
        commits = _commits(session, location, "")
        last = _last_epoch(commits, is_whole=True)
    return None if last is None else replace(last, newest=commits[0]["version"] if commits else 0)


def last_transaction(session: SparkSession, location: Location, application: str) -> int | None:
    """Returns the newest version of an application's transactions, which Delta keeps longer than the commits. None if the
    table has none, or if that is not known. Reads the table's newest checkpoint."""
    with spark_errors(location):
        try:
            found = _loaded(session, location).update().transactions().get(application)
            return int(found.get()) if found.isDefined() else None
        except Py4JJavaError:
            raise
        except Py4JError:  # there is no such method
            return None


def current_version(session: SparkSession, location: Location) -> int:
    """Returns the table's newest version. Runs no Spark job."""
    (newest,) = _commits(session, location, " LIMIT 1")
    return int(newest["version"])


def was_set_back(session: SparkSession, location: Location) -> LastEpoch | None:
    """Returns the newest epoch if RESTORE has taken epochs out of the table."""
    last = last_epoch(session, location)
    return last if last is not None and last.set_back else None


def files_set_back(table: TableId, what: str) -> CopySetBackError:
    """Returns the error for a table whose files, with Delta's log, are older than they were. `what`: how that is known."""
    return CopySetBackError(
        f"{what}: its files were set back to an older state.",
        f"Put back its newest files, and start the job again; or {START_OVER}.",
        table,
    )


def require_not_set_back(table: TableId, location: Location, last: LastEpoch) -> None:
    """Raises CopySetBackError if epochs that the job has written are not in the table."""
    if not last.set_back:
        return
    text = (
        f"{location} was set back by RESTORE, and its log no longer has the commits that RESTORE took out."
        if not last.epoch
        else f"{location} was set back by RESTORE to a version before {last.version}, which has epoch {last.epoch}."
        if last.is_repairable
        else f"{location} was set back by RESTORE, and lacks epochs although later ones were written, up to epoch {last.epoch}."
    )
    put_back = f"RESTORE TABLE {location.relation} TO VERSION AS OF {last.version}, and start the job again; or "
    raise CopySetBackError(text, f"{put_back if last.is_repairable else 'Or '}{START_OVER}.", table)


def _commits(session: SparkSession, location: Location, limit: str) -> list[Row]:
    """Returns the table's commits, newest first."""
    with spark_errors(location):
        history = session.sql(f"DESCRIBE HISTORY {location.relation}{limit}")
        commits = history.select("version", "operation", "operationParameters", "userMetadata").collect()
    return sorted(commits, key=lambda row: int(row["version"]), reverse=True)


def _epoch_of(metadata: str | None) -> EpochCommit | None:
    """Returns what a commit with this metadata tells of the epoch that it wrote, None if it wrote none."""
    found = _EPOCH_METADATA.fullmatch(metadata or "")
    if found is None:
        return None
    return EpochCommit(int(found[1]), None if found[2] is None else int(found[2]), found[3] is not None)


def _last_epoch(commits: Sequence[Row], *, is_whole: bool = False) -> LastEpoch | None:
    """`commits`: the newest ones. `is_whole`: all that there are. None if they do not tell."""
    last: tuple[int, int] | None = None
    kept_until = commits[0]["version"] if commits else 0
    """The table has the given commits up to this version."""
    for commit in commits:
        version, of = commit["version"], _epoch_of(commit["userMetadata"])
        is_kept = version <= kept_until
        if of is not None:
            if not is_kept:
                _, newest = last = last or (of.epoch, version)
                return LastEpoch(*last, set_back=True, is_repairable=newest == version)
            last = last or (of.epoch, version)
            if of.is_whole:
                return LastEpoch(*last, set_back=False)
        elif is_kept and commit["operation"] == "RESTORE":
            target = commit["operationParameters"].get("version")
            kept_until = -1 if target is None else int(target)
    oldest = commits[-1]["version"] if commits else 0
    if last is not None and (is_whole or kept_until >= oldest):
        return LastEpoch(*last, set_back=False)
    if last is None and is_whole and (oldest == 0 or kept_until < oldest - 1):
        return LastEpoch(0, 0, set_back=oldest > 0, is_repairable=False)
    return None


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
