"""Checks keys of the job file against each other. Finds all contradictions at once, each with the key to change."""

from typing import Protocol

from tidemark.conf.quantities import Every, Trigger
from tidemark.conf.reading import Log, Snapshot, StartAfterGtids, StartAtFile, StartAtLsn, StartAtTime
from tidemark.conf.sink import CheckedSink
from tidemark.conf.source import Source
from tidemark.conf.tables import TableName, TableTemplate
from tidemark.conf.yaml_tree import Path
from tidemark.state.gtid import is_gtid_set, is_mariadb_position

POSTGRES_HOME = "public"
"""PostgreSQL's usual schema for names without one."""

Contradiction = tuple[Path, str]


class Sections(Protocol):
    """The keys of a job file that are checked against each other. A `JobFile` has them."""

    @property
    def mode(self) -> str: ...
    @property
    def has_snapshot(self) -> bool: ...
    @property
    def trigger(self) -> Trigger: ...
    @property
    def source(self) -> Source: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def log(self) -> Log: ...
    @property
    def sink(self) -> CheckedSink: ...


def contradictions(job: Sections) -> list[Contradiction]:
    """Returns (path of a key, what is wrong and what is allowed) for every contradiction."""
    return [
        *_of_mode(job),
        *_of_kind(job),
        *_of_gtids(job),
        *_of_server_ids(job),
        *_of_columns(job),
        *_of_statements(job),
        *_of_tls(job),
        *_of_mirror(job),
        *_of_files(job),
        *_of_delta(job),
    ]


def _of_mode(job: Sections) -> list[Contradiction]:
    found: list[Contradiction] = []
    if job.log.start is not None and job.mode != "incremental":
        text = f"is allowed only in mode incremental: mode {job.mode} starts with the snapshot"
        found.append((("log", "start"), text))
    if job.mode == "full" and isinstance(job.trigger, Every):
        found.append((("trigger",), "must be once in mode full: such a job ends by itself"))
    return found


def _of_kind(job: Sections) -> list[Contradiction]:
    """Keys that are only for another kind of source."""
    source, start = job.source, job.log.start
    for_mysql: dict[Path, bool] = {
        ("source", "server_ids"): source.server_ids is not None,
        ("source", "zero_dates"): source.zero_dates != "null",
        ("snapshot", "max_replica_lag_seconds"): job.snapshot.max_replica_lag_seconds is not None,
        ("log", "start"): isinstance(start, StartAtFile | StartAfterGtids | StartAtTime),
        ("log", "ignore_statements_on"): bool(job.log.ignore_statements_on),
    }
    for_postgres: dict[Path, bool] = {
        ("source", "slot"): source.slot is not None,
        ("source", "publication"): source.publication is not None,
        ("source", "standby"): source.standby,
        ("log", "start"): isinstance(start, StartAtLsn),
    }
    found: list[Contradiction] = []
    if source.url.kind not in {"mysql", "mariadb"}:
        found += [(path, "is for MySQL and MariaDB sources only") for path, given in for_mysql.items() if given]
    if source.url.kind != "postgresql":
        found += [(path, "is for PostgreSQL sources only") for path, given in for_postgres.items() if given]
    return found


def _of_gtids(job: Sections) -> list[Contradiction]:
    """A GTID set has another form in each kind of source."""
    start = job.log.start
    if not isinstance(start, StartAfterGtids):
        return []
    match job.source.url.kind:
        case "mysql":
            is_valid = is_gtid_set(start.gtid)
            form = "a GTID set of MySQL as @@gtid_executed has it, like uuid:1-5"
        case "mariadb":
            is_valid = is_mariadb_position(start.gtid)
            form = "a GTID position of MariaDB like @@gtid_binlog_pos, such as 0-1-100"
        case _:
            return []  # `_of_kind` refuses it
    return [] if is_valid else [(("log", "start", "gtid"), f"must be {form}")]


def _of_server_ids(job: Sections) -> list[Contradiction]:
    """Every running split and the log reader may need a log connection of its own. A reader that connects again takes another
    id while the server still has its old connection."""
    server_ids, needed = job.source.server_ids, (job.snapshot.parallelism if job.has_snapshot else 1) + 1
    if server_ids is None or len(server_ids) >= needed:
        return []
    readers = (
        f"{job.snapshot.parallelism} splits and the log reader need" if job.has_snapshot else "the log reader needs"
    )
    text = f"has {len(server_ids)} ids, but {readers} {needed}"
    return [(("source", "server_ids"), f"{text}. Twice as many let retries find free ones")]


def _of_columns(job: Sections) -> list[Contradiction]:
    found: list[Contradiction] = [
        (("source", "columns", str(table), "mask"), f"masks '{column}', which is excluded")
        for table, columns in job.source.columns.items()
        for column in columns.mask
        if column in columns.exclude
    ]
    found += [
        (("source", "columns", str(table), "as_text"), "is for arrays of PostgreSQL: no other source has any")
        for table, columns in job.source.columns.items()
        if columns.as_text and job.source.url.kind != "postgresql"
    ]
    found += [
        (
            ("source", "keys", str(table)),
            f"has '{column}', which source.columns masks: a masked column can't identify rows",
        )
        for table, key in job.source.keys.items()
        for column in key
        if column in job.source.masked_columns(table.database, table.name)
    ]
    return found + [
        (("source", "keys", str(table)), f"has '{column}', which source.columns excludes")
        for table, key in job.source.keys.items()
        for column in key
        if column in job.source.excluded_columns(table.database, table.name)
    ]


def _of_statements(job: Sections) -> list[Contradiction]:
    """A wildcard may match temporary tables, which are not copied. For a copied table the setting has no effect."""
    named = {glob.only_table for glob in job.source.tables}
    return [
        (("log", "ignore_statements_on"), f"has {table}, which is copied: leave it out by source.exclude_tables")
        for table in job.log.ignore_statements_on
        if table in named and job.source.selects(table.database, table.name)
    ]


def _of_tls(job: Sections) -> list[Contradiction]:
    ends = {"source": job.source.tls, "sink": job.sink.tls if job.sink.type == "mirror" else None}
    return [
        ((end, "tls", "key" if tls.cert is None else "cert"), "is given alone: cert and key go together")
        for end, tls in ends.items()
        if tls is not None and (tls.cert is None) != (tls.key is None)
    ]


def _of_mirror(job: Sections) -> list[Contradiction]:
    if job.sink.type != "mirror":
        several = job.log.apply_parallelism > 1
        return [(("log", "apply_parallelism"), "is for sink.type mirror only")] if several else []
    found: list[Contradiction] = []
    template, target, source = job.sink.copies, job.sink.url, job.source.url
    if template.schema_template is None and target.database is None:
        text = 'names no database, and neither does sink.table: write …/database here, or table: "copy.{table}"'
        found.append((("sink", "url"), text))
    found += _of_template(job, template)
    is_postgres = target.kind == "postgresql"
    if (not is_postgres or target.database == source.database) and target.same_server(source):
        home = POSTGRES_HOME if is_postgres else target.database
        found += [
            (("sink", "table"), f"would write {table} to {copy} on the same server, and source.tables selects that too")
            for table, copy in _examples_of_copies(job, template, home)
            if job.source.selects(copy.database, copy.name)
        ]
    return found


def _of_files(job: Sections) -> list[Contradiction]:
    return _of_template(job, job.sink.table) if job.sink.type == "files" else []


def _of_delta(job: Sections) -> list[Contradiction]:
    if job.sink.type != "delta":
        return []
    found: list[Contradiction] = []
    if job.sink.on_schema_change.drop_column == "drop":
        text = (
            "must not be drop for sink.type delta: Delta drops columns only of tables with column mapping, which the job's "
            "tables don't have, because older readers could not read them. Allowed: evolve, stop, ignore"
        )
        found.append((("sink", "on_schema_change", "drop_column"), text))
    if job.sink.style == "changelog" and job.sink.audit_columns.model_dump(exclude_none=True):
        text = "is for style: mirror only; a changelog has every DELETE, and _commit_timestamp"
        found.append((("sink", "audit_columns"), text))
    if job.sink.catalog is None:
        if job.sink.path is None:
            found.append((("sink", "path"), "is missing; write it, or sink.catalog"))
        return [*found, *_of_template(job, job.sink.table)]
    found += _of_template(job, job.sink.table)
    if job.sink.path is not None:
        found.append((("sink", "catalog"), "is given together with sink.path: choose one of the two"))
    if job.sink.table.schema_template is None:
        found.append((("sink", "table"), 'names no schema: write one like "{schema}.{table}" or "lake.{table}"'))
    return found


def _of_template(job: Sections, template: TableTemplate) -> list[Contradiction]:
    single = job.source.tables[0].only_table if len(job.source.tables) == 1 else None
    if "{table}" in template.text or single is not None:
        return []
    return [(("sink", "table"), "does not contain {table}: all tables would be written to one table")]


def _examples_of_copies(job: Sections, template: TableTemplate, home: str | None) -> list[tuple[TableName, TableName]]:
    """Returns (table, its copy) for each glob, with an example of a table that it matches."""
    copies = []
    for glob in job.source.tables:
        table = glob.example
        schema, name = template.target(table)
        copies.append((table, TableName(schema or home or "", name)))
    return copies
