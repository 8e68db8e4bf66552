"""The mirror sink on the driver: checks the target, takes the job over there, creates and claims tables."""

import contextlib
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import assert_never

from tidemark.conf.endpoint import DatabaseKind, Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.sink import MirrorSink as MirrorSettings
from tidemark.conf.source import Tls
from tidemark.conf.tables import TableName, TableTemplate
from tidemark.sinks.audit import NO_AUDIT, AuditColumns
from tidemark.sinks.comparing import Comparisons, CopyTable, Key
from tidemark.sinks.mirror.audit import audit_findings
from tidemark.sinks.mirror.bad_values import STOP, Policies, ValueGate
from tidemark.sinks.mirror.comparing import MirrorComparison
from tidemark.sinks.mirror.connecting import Waiting
from tidemark.sinks.mirror.enum_labels import enums_of, labels_of_source
from tidemark.sinks.mirror.ledger import writer_name
from tidemark.sinks.mirror.mysql import session as mysql_session
from tidemark.sinks.mirror.ordering import orders_alike
from tidemark.sinks.mirror.planning import (
    Found,
    adapting_clauses,
    added_columns,
    columns_to_drop,
    columns_to_make,
    compares_otherwise,
    find_column,
    is_replaceable,
    key_clauses,
    ownership_findings,
    policy_problems,
    route_problems,
    table_findings,
    target_of,
    type_findings,
    was_replaced,
    widened_columns,
    without_defaults,
)
from tidemark.sinks.mirror.postgres import session as postgres_session
from tidemark.sinks.mirror.target import ComparingSql, Owner, Session, TargetColumn, TargetName, TargetTable
from tidemark.sinks.mirror.writer import MirrorWriter
from tidemark.sinks.sink import (
    Finding,
    JobIdentity,
    ReadOnlyError,
    SinkBusyError,
    Written,
    raise_problems,
    reserved_name_findings,
)
from tidemark.state.copied_range import CopiedRange
from tidemark.state.errors import RefusedRowsError, SinkError
from tidemark.state.failpoints import failpoint
from tidemark.state.integer_range import IntegerRange
from tidemark.state.remedies import START_OVER_NOW, read_again
from tidemark.state.table import Column, TableId, TableSchema

OWN_DATABASE = "tidemark"
"""The database of the ledger in MySQL if neither the URL nor the template names one."""


@dataclass(frozen=True, slots=True)
class MirrorSink:
    """`source_kind`: the kind of server whose types `Column.source_type` names. `reconnect`: how long writers wait for a target
    that is out of reach. `parallelism`: how many connections may write an epoch of the log."""

    url: Endpoint
    template: TableTemplate
    tls: Tls | None
    source_kind: DatabaseKind
    policies: Policies = STOP
    reconnect: Reconnect = AT_START
    audit: AuditColumns = NO_AUDIT
    appends_keyless: bool = False
    parallelism: int = 1

    @classmethod
    def of(
        cls,
        settings: MirrorSettings,
        source_kind: DatabaseKind,
        reconnect: Reconnect = AT_START,
        *,
        parallelism: int = 1,
    ) -> "MirrorSink":
        by_table = {(t.database, t.name): dict(columns) for t, columns in settings.on_bad_value_in.items()}
        policies = Policies(settings.on_bad_value, by_table)
        return cls(
            settings.url,
            settings.copies,
            settings.tls,
            source_kind,
            policies,
            reconnect,
            AuditColumns.of(settings.audit_columns),
            appends_keyless=settings.keyless == "append",
            parallelism=parallelism,
        )

    def connect(self, reconnect: Reconnect = AT_START, writer_of: JobIdentity | None = None) -> Session:
        """`writer_of`: the session is one of this job's writers, and a later driver may end it."""
        name = "tidemark mirror" if writer_of is None else writer_name(writer_of.uuid, writer_of.owner)
        match self.url.kind:
            case "mysql" | "mariadb":
                return mysql_session.connect(self.url, self.tls, self._home, self.source_kind, reconnect, name=name)
            case "postgresql":
                return postgres_session.connect(self.url, self.tls, self.source_kind, reconnect, name=name)
            case _:
                assert_never(self.url.kind)

    @property
    def _home(self) -> str:
        constant = self.template.schema_template
        if self.url.database is not None:
            return self.url.database
        return OWN_DATABASE if constant is None or "{" in constant else constant

    def check(
        self, schemas: Sequence[TableSchema], job: JobIdentity | None = None, written: Collection[TableId] = ()
    ) -> list[Finding]:
        with contextlib.closing(self.connect()) as session:
            return self._checked(session, schemas, job, written)

    def _checked(
        self, session: Session, schemas: Sequence[TableSchema], job: JobIdentity | None, written: Collection[TableId]
    ) -> list[Finding]:
        findings = list(self._findings(session, schemas, job, written))
        if written and any(finding.is_problem for finding in findings):
            session.require_writable()  # what a job has written there, a standby may not have yet
        return findings

    def _targets(self, session: Session, schemas: Sequence[TableSchema]) -> list[tuple[TableSchema, TargetName]]:
        return [(schema, target_of(schema.table, self.template, session.home)) for schema in schemas]

    def _findings(
        self, session: Session, schemas: Sequence[TableSchema], job: JobIdentity | None, written: Collection[TableId]
    ) -> Iterator[Finding]:
        targets = self._targets(session, schemas)
        needed = dict.fromkeys((session.home, *(target.schema for _, target in targets)))
        if (problem := session.server_problem(list(needed))) is not None:
            yield Finding(None, *problem)
        for name in needed:
            if not session.schema_exists(name):
                yield Finding(None, f"schema {name} will be created")
                if session.dialect.is_reserved_schema(name):
                    for schema in (schema for schema, target in targets if target.schema == name):
                        message = f"The target's server keeps the name {name} for itself: no schema can have it."
                        yield Finding(schema.table, message, "Choose another name by sink.table.")
        for schema in schemas:
            yield from reserved_name_findings(schema)
        yield from route_problems(targets, session.dialect, appends_keyless=self.appends_keyless)
        yield from policy_problems(schemas, self.policies.by_table)
        fits = session.dialect.name_fits
        takes = [pair for pair in targets if pair[0].key or self.appends_keyless]
        usable = [pair for pair in takes if fits(pair[1].schema) and fits(pair[1].table)]
        tables = session.inspect_all([target for _, target in usable])
        owners = session.owners([target for _, target in usable])
        for schema, target in usable:
            existing, owner = tables.get(target), owners.get(target)
            unknown = existing is not None and existing.engine_problem is None and owner is None
            is_empty = not unknown or session.is_empty(target)  # of owned tables it does not matter
            was_emptied = schema.table in written and was_replaced(existing, owner) and session.is_empty(target)
            found = Found(existing, is_empty, owner, schema.table in written, was_emptied)
            yield from ownership_findings(schema, target, found, job)
            yield from audit_findings(self.audit, schema, existing, session.dialect)
            extended = self.audit.extended(schema)
            if existing is None:
                yield from type_findings(extended, session.dialect)
            else:
                is_owned = owner is not None and job is not None and owner.job.uuid == job.uuid
                is_new = owner is None
                yield from table_findings(extended, target, existing, session.dialect, is_owned=is_owned, is_new=is_new)

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        with contextlib.closing(self.connect()) as session:
            raise_problems(self._checked(session, schemas, job, written), [schema.table for schema in schemas])
            targets = self._targets(session, schemas)
            for name in dict.fromkeys((session.home, *(target.schema for _, target in targets))):
                if not session.schema_exists(name):
                    session.create_schema(name)
            session.create_bookkeeping()
            session.create_rejects()
            session.take_over(job)
            self._prepare_tables(session, job, targets)

    def _prepare_tables(
        self, session: Session, job: JobIdentity, targets: Sequence[tuple[TableSchema, TargetName]]
    ) -> None:
        owners = session.claim({target: str(schema.table) for schema, target in targets}, job)
        for target, owner in owners.items():
            if owner.job.uuid != job.uuid:
                raise SinkError(
                    f"{target} was claimed by job {owner.job.name} ({owner.job.uuid}) just now.",
                    "Choose another name by sink.table.",
                )
        known = session.inspect_all([target for _, target in targets])
        missing = [(schema, target) for schema, target in targets if target not in known]
        for schema, target in missing:
            extended = self.audit.extended(schema)
            taken = [other.table for _, other in targets if other.schema == target.schema]
            try:
                dialect = session.make_types(target, extended.captured, taken)
                session.create_table(dialect.create_table(target, extended))
            except RefusedRowsError as error:  # too many columns, a key that is too long: the others go on
                raise SinkError(error.message, error.remedy, schema.table) from error
        created = session.inspect_all([target for _, target in missing])
        for schema, target in missing:
            if target in created:
                extended = self.audit.extended(schema)
                findings = list(table_findings(extended, target, created[target], session.dialect))
                raise_problems(findings, [schema.table for schema, _ in targets])
        self._add_labels(session, targets, known)
        current = {target: table for target, table in (known | created).items() if target in owners}
        replaced = {t: table for t, table in current.items() if was_replaced(table, owners[t])}
        session.note_incarnations(replaced)
        session.mark_created([target for target, owner in owners.items() if not owner.created])

    def add_labels(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        """See `tidemark.sinks.sink.TakesLabels`."""
        with contextlib.closing(self.connect(self.reconnect)) as session:
            targets = self._targets(session, schemas)
            self._add_labels(session, targets, session.inspect_all([target for _, target in targets]))

    def _add_labels(
        self,
        session: Session,
        targets: Sequence[tuple[TableSchema, TargetName]],
        existing: Mapping[TargetName, TargetTable],
    ) -> None:
        """Lets enums of copies have the labels of the source. One that can't get labels stays as it is."""
        for schema, target in targets:
            if target in existing:
                enums = enums_of(schema, existing[target], session.dialect)
                for enum, labels in labels_of_source(schema, enums).items():
                    with _about(schema.table):
                        session.add_labels(enum, labels)
                        failpoint("sink.after_labels")

    def replaceable(
        self, job: JobIdentity, schemas: Sequence[TableSchema], orders: Mapping[TableId, Mapping[str, str]]
    ) -> frozenset[TableId]:
        """See `tidemark.sinks.sink.ReplacesRanges`."""
        with contextlib.closing(self.connect()) as session:
            targets = [(s, target) for s, target in self._targets(session, schemas) if s.table in orders]
            owners = session.owners([target for _, target in targets])
            existing = session.inspect_all([target for _, target in targets])
            return frozenset(
                schema.table
                for schema, target in targets
                if target in existing
                and target in owners
                and (owners[target].job.uuid, owners[target].source_table) == (job.uuid, str(schema.table))
                and is_replaceable(self.audit.extended(schema), existing[target], session.dialect, orders[schema.table])
                and orders_alike(session, target, existing[target], orders[schema.table])
            )

    def adapt(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        """Creates copies that were dropped, adds columns, and replaces those of another type. A copy whose key is another one,
        or compares otherwise, is emptied and gets the source's, unless it keeps deleted rows. Other jobs' tables stay."""
        with contextlib.closing(self.connect()) as session:
            targets = self._targets(session, schemas)
            owners = session.owners([target for _, target in targets])
            existing = session.inspect_all([target for _, target in targets])
            for source_schema, target in targets:
                schema = self.audit.extended(source_schema)
                owner, found = owners.get(target), existing.get(target)
                if owner is None or (owner.job.uuid, owner.source_table) != (job.uuid, str(schema.table)):
                    continue
                raise_problems(list(audit_findings(self.audit, source_schema, found, session.dialect)))
                if found is not None:
                    with _about(source_schema.table):
                        dialect = session.make_types(target, columns_to_make(schema, found, session.dialect))
                        clauses = adapting_clauses(schema, found, dialect)
                        keyed = key_clauses(schema, found, dialect)
                        if not keyed and compares_otherwise(schema, found, dialect):
                            keyed = clauses
                        if not self.audit.keeps_deleted and keyed:
                            _replace_key(session, target, found, keyed)
                            failpoint("sink.after_key")
                            if session.inspect(target) is not None:
                                _keep_known(session, target, owner, found)
                        elif clauses:
                            session.create_table(dialect.alter_table(target, clauses))
                            _keep_known(session, target, owner, found)
                elif (schema.key or self.appends_keyless) and not any(
                    f.is_problem for f in type_findings(schema, session.dialect)
                ):
                    dialect = session.make_types(target, schema.captured)
                    session.create_table(dialect.create_table(target, schema))

    def add_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        with contextlib.closing(self.connect()) as session:
            target, owner, found = self._copy_of(session, job, schema)
            lacking = [column for column in columns_to_make(schema, found, session.dialect) if column.name in names]
            dialect = session.make_types(target, lacking)
            clauses = added_columns(schema, found, dialect, names)
            if clauses:
                session.create_table(dialect.alter_table(target, clauses))
            failpoint("sink.after_adding")
            without = without_defaults(schema, session.dialect, names)
            if without:
                session.create_table(session.dialect.alter_table(target, without))
            self._note_altered(session, schema, target, owner, found)
            for column in schema.captured:
                earlier = find_column(found, column, session.dialect) if column.name in names else None
                if earlier is not None:  # the others are new: the copy is not searched for their values
                    _require_constant(session, schema.table, target, column, earlier)

    def widen_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        """See `tidemark.sinks.sink.Widens`. The server may write all rows again: it keeps the copy from others meanwhile."""
        with contextlib.closing(self.connect()) as session:
            target, owner, found = self._copy_of(session, job, schema)
            clauses = widened_columns(schema, found, session.dialect, names)
            if clauses:
                session.create_table(session.dialect.alter_table(target, clauses))
            failpoint("sink.after_widening")
            self._note_altered(session, schema, target, owner, found)

    def drop_columns(self, job: JobIdentity, schema: TableSchema, names: Sequence[str]) -> None:
        """See `tidemark.sinks.sink.DropsColumns`. Where DDL commits, a second session holds the fence meanwhile. Whoever takes
        the job over ends both sessions."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(_about(schema.table))
            session = stack.enter_context(contextlib.closing(self.connect(writer_of=job)))
            keeper = session
            if not session.rolls_back_ddl:
                keeper = stack.enter_context(contextlib.closing(self.connect(writer_of=job)))
            keeper.hold_fence(job)
            ((_, target),) = self._targets(session, [schema])
            owner, found = session.owners([target]).get(target), session.inspect(target)
            if found is None or owner is None or (owner.job.uuid, owner.source_table) != (job.uuid, str(schema.table)):
                return
            gone = columns_to_drop(self.audit.extended(schema), found, session.dialect, names)
            if gone:
                _drop_columns(session, target, gone)
            keeper.end_transaction(f"dropping columns of {target}")
            failpoint("sink.after_dropping")
            _keep_known(session, target, owner, found)

    def lacks_columns(self, job: JobIdentity, schema: TableSchema) -> bool:
        """See `tidemark.sinks.sink.DropsColumns`."""
        with contextlib.closing(self.connect()) as session:
            ((_, target),) = self._targets(session, [schema])
            owner, found = session.owners([target]).get(target), session.inspect(target)
            if found is None or owner is None or (owner.job.uuid, owner.source_table) != (job.uuid, str(schema.table)):
                return False
            return any(find_column(found, column, session.dialect) is None for column in schema.captured)

    def _copy_of(
        self, session: Session, job: JobIdentity, schema: TableSchema
    ) -> tuple[TargetName, Owner, TargetTable]:
        """Returns the table's copy as it is. Raises SinkError if it is not this job's, or can't have the audit columns."""
        ((_, target),) = self._targets(session, [schema])
        owner, found = session.owners([target]).get(target), session.inspect(target)
        if found is None or owner is None or (owner.job.uuid, owner.source_table) != (job.uuid, str(schema.table)):
            raise SinkError(f"{target} is not this job's copy of {schema.table} any more.", START_OVER_NOW)
        raise_problems(list(audit_findings(self.audit, schema, found, session.dialect)))
        return target, owner, found

    def _note_altered(
        self, session: Session, schema: TableSchema, target: TargetName, owner: Owner, before: TargetTable
    ) -> None:
        """Lets a copy that was altered stay known as the one that the job wrote. Raises SinkError if it does not fit."""
        existing = _keep_known(session, target, owner, before)
        extended = self.audit.extended(schema)
        raise_problems([f for f in table_findings(extended, target, existing, session.dialect) if f.is_problem])

    add_constants = add_columns
    """See `tidemark.sinks.sink.AddsConstants`. The rows of the copy get a constant as the default of the new column: most
    servers write no row for that. A column that the copy has already must have it in each row, whoever added it."""

    def writer(self, job: JobIdentity) -> MirrorWriter:
        waiting = Waiting(self.reconnect, self.url)
        return MirrorWriter(
            lambda: self.connect(self.reconnect, job),
            self.template,
            job,
            waiting,
            self.policies,
            self.audit,
            self.parallelism,
        )

    @contextlib.contextmanager
    def comparable(self, schema: TableSchema) -> Iterator[Comparisons]:
        """See `tidemark.sinks.comparing.ComparableSink`."""
        yield functools.partial(self._comparison, schema)

    @contextlib.contextmanager
    def _comparison(self, schema: TableSchema, keys: Collection[Key] | None = None) -> Iterator[MirrorComparison]:
        """Keeps one connection open inside the `with` block. If it breaks, or the target refuses a statement, that is an error
        of this table alone."""
        with contextlib.closing(self.connect(self.reconnect)) as session, _concerning(schema.table):
            target = target_of(schema.table, self.template, session.home)
            existing = session.inspect(target)
            if existing is None:
                raise SinkError(f"{target}, the copy of {schema.table}, is gone.", START_OVER_NOW)
            raise_problems(list(table_findings(self.audit.extended(schema), target, existing, session.dialect)))
            sql, rows = session.comparing(target, schema, existing)
            sql.prepare()
            _require_temporary_tables(sql, schema)
            session.end_transaction("comparing")  # the copy may be read for long before the session is used again
            gate = ValueGate(schema, self.policies, rows.bad_values, rows.as_text)
            of_copy = CopyTable(self.url, self.tls, TableId(target.schema, target.table))
            yield MirrorComparison(session, sql, rows, gate, schema, target, existing, of_copy, self.audit.deleted)

    def keys_within(self, schema: TableSchema, within: IntegerRange, limit: int) -> list[Key]:
        """See `tidemark.sinks.comparing.ComparableSink`."""
        with self._comparison(schema) as copy:
            copy.stage(())
            return [pair.key for pair in copy.surplus(CopiedRange.of_integers(within), limit)]

    def written(self, job: JobIdentity) -> Written:
        with contextlib.closing(self.connect()) as session:
            return session.written(job)

    def lacks(self, job: JobIdentity, epoch: int) -> bool:
        """The fence's row `log` moves on in the transaction that writes an epoch of the log, or the last one of several."""
        with contextlib.closing(self.connect(self.reconnect)) as session:
            session.take_over(job)
            return session.written(job).last_epoch < epoch

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Does nothing: the transactions of log parts and a take-over remove what the ledger no longer needs."""


@contextlib.contextmanager
def _about(table: TableId) -> Iterator[None]:
    """Lets an error be one of this table alone, also that others keep its copy locked."""
    try:
        yield
    except SinkError as error:
        raise type(error)(error.message, error.remedy, table) from error
    except ReadOnlyError:
        raise
    except SinkBusyError as error:
        raise SinkError(error.message, error.remedy, table) from error


@contextlib.contextmanager
def _concerning(table: TableId) -> Iterator[None]:
    """Lets an error be one of this table alone, and of the same kind."""
    try:
        yield
    except (SinkError, SinkBusyError) as error:
        if error.table is not None:
            raise
        raise type(error)(error.message, error.remedy, table) from error


def _require_temporary_tables(sql: ComparingSql, schema: TableSchema) -> None:
    """Raises SinkError now, if the target refuses them, and not when all of the copy was read."""
    try:
        sql.drop(sql.create(schema.key))
    except SinkError as error:
        raise type(error)(
            error.message,
            f"{error.remedy} To compare, the account needs the right to create temporary tables, too: CREATE TEMPORARY TABLES "
            "(MySQL, MariaDB) or TEMPORARY (PostgreSQL) on the target database. Then compare again.",
        ) from error


def _replace_key(session: Session, target: TargetName, found: TargetTable, clauses: Sequence[str]) -> None:
    """Raises SinkError if the server refuses it, such as for what the copy was given besides: partitions by other columns, a
    unique index with a column that goes."""
    try:
        session.replace_key(target, found, clauses)
    except SinkError as error:
        raise SinkError(error.message, f"{error.remedy} Or drop that table, and let the job create it.") from error


def _drop_columns(session: Session, target: TargetName, names: Sequence[str]) -> None:
    """Raises SinkError if something needs the columns, such as an index: MySQL would leave it with its other columns, and
    PostgreSQL would drop it."""
    remedy = (
        "Drop what needs the column, or change it so that it does without, and run the job again. Or keep the column: "
        "write drop_column: evolve in sink.on_schema_change."
    )
    dialect, listed = session.dialect, ", ".join(names)
    if dependents := session.dependents(target, names):
        raise SinkError(
            f"{target} has columns that the source has dropped ({listed}), and that are needed by: {', '.join(dependents)}.",
            remedy,
        )
    failpoint("sink.before_dropping")
    try:
        session.execute(
            dialect.alter_table(target, [dialect.drop_column(name) for name in names]),
            doing=f"dropping columns of {target}: {listed}",
        )
    except SinkError as error:
        raise SinkError(error.message, remedy) from error


def _keep_known(session: Session, target: TargetName, owner: Owner, before: TargetTable) -> TargetTable:
    """Lets a copy that was altered stay known, also if it is rightly empty. Returns it as it is now."""
    existing = session.inspect(target)
    assert existing is not None, "it was altered just now"
    if before.incarnation is not None and before.incarnation == owner.incarnation:
        session.note_incarnations({target: existing})
        session.mark_created([target])
    return existing


def _require_constant(
    session: Session, table: TableId, target: TargetName, column: Column, existing: TargetColumn
) -> None:
    """Raises SinkError if the copy had the column, and other values in it: the table's rows are read again then."""
    if session.has_row(target, session.dialect.differs(column, existing)):
        raise SinkError(
            f"{target} has {'values' if column.constant is None else 'other values'} in column {existing.name}, which the "
            "source's table got only now.",
            read_again(TableName(table.database, table.name)),
        )
