"""The mirror sink on the driver: checks the target, takes the job over there, creates and claims tables."""

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.sink import MirrorSink as MirrorSettings
from tidemark.conf.source import Tls
from tidemark.conf.tables import TableTemplate
from tidemark.sinks.fencing import Written
from tidemark.sinks.mirror.bad_values import STOP, Policies
from tidemark.sinks.mirror.mysql import session as mysql_session
from tidemark.sinks.mirror.planning import (
    Found,
    ownership_findings,
    policy_problems,
    route_problems,
    table_findings,
    target_of,
    type_findings,
)
from tidemark.sinks.mirror.postgres import session as postgres_session
from tidemark.sinks.mirror.target import Session, SourceKind, TargetName
from tidemark.sinks.mirror.writer import MirrorWriter
from tidemark.sinks.sink import Finding, JobIdentity, raise_problems
from tidemark.state.errors import SinkError
from tidemark.state.table import TableId, TableSchema

OWN_DATABASE = "tidemark"
"""The database of the ledger in MySQL if neither the URL nor the template names one."""


@dataclass(frozen=True, slots=True)
class MirrorSink:
    """`source_kind`: the kind of server whose types `Column.source_type` names."""

    url: Endpoint
    template: TableTemplate
    tls: Tls | None
    source_kind: SourceKind
    policies: Policies = STOP

    @classmethod
    def of(cls, settings: MirrorSettings, source_kind: SourceKind) -> "MirrorSink":
        by_table = {(t.database, t.name): dict(columns) for t, columns in settings.on_bad_value_in.items()}
        policies = Policies(settings.on_bad_value, by_table)
        return cls(settings.url, settings.table, settings.tls, source_kind, policies)

    def connect(self) -> Session:
        if self.url.kind == "postgresql":
            return postgres_session.connect(self.url, self.tls, self.source_kind)
        return mysql_session.connect(self.url, self.tls, self._home, self.source_kind)

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
            return list(self._findings(session, schemas, job, written))

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
        yield from route_problems(targets, session.dialect)
        yield from policy_problems(schemas, self.policies.by_table)
        fits = session.dialect.name_fits
        usable = [pair for pair in targets if pair[0].key and fits(pair[1].schema) and fits(pair[1].table)]
        tables = session.inspect_all([target for _, target in usable])
        owners = session.owners([target for _, target in usable])
        for schema, target in usable:
            existing, owner = tables.get(target), owners.get(target)
            unknown = existing is not None and existing.engine_problem is None and owner is None
            is_empty = not unknown or session.is_empty(target)  # of owned tables it does not matter
            found = Found(existing, is_empty, owner, schema.table in written)
            yield from ownership_findings(schema, target, found, job)
            if existing is None:
                yield from type_findings(schema, session.dialect)
            else:
                yield from table_findings(schema, target, existing, session.dialect)

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema], written: Collection[TableId] = ()) -> None:
        with contextlib.closing(self.connect()) as session:
            raise_problems(list(self._findings(session, schemas, job, written)))
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
            session.create_table(session.dialect.create_table(target, schema))
        created = session.inspect_all([target for _, target in missing])
        for schema, target in missing:
            if target in created:
                raise_problems(list(table_findings(schema, target, created[target], session.dialect)))
        session.mark_created([target for target, owner in owners.items() if not owner.created])

    def writer(self, job: JobIdentity) -> MirrorWriter:
        return MirrorWriter(self.connect, self.template, job, self.policies)

    def written(self, job: JobIdentity) -> Written:
        with contextlib.closing(self.connect()) as session:
            return session.written(job)

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        """Does nothing: the transactions of log parts and a take-over remove what the ledger no longer needs."""
