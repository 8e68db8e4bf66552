"""The mirror sink's driver side: checks, tables, the ledger's housekeeping."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conf.endpoint import Endpoint
from conf.sink import MirrorSink as MirrorSettings
from conf.source import Tls
from conf.tables import TableTemplate
from sinks.mirror import mysql_session, postgres_session
from sinks.mirror.planning import (
    Found,
    ownership_findings,
    place_of,
    route_problems,
    table_findings,
    type_findings,
)
from sinks.mirror.target import Place, Session, SourceKind
from sinks.mirror.writer import MirrorWriter
from sinks.sink import Finding, JobIdentity, raise_problems
from state.errors import SinkError
from state.table import TableSchema

OWN_DATABASE = "tidemark"
"""Where the ledger stands in MySQL if neither the URL nor the template names one database."""


@dataclass(frozen=True, slots=True)
class MirrorSink:
    """`source_kind` says whose types `Column.source_type` is in."""

    url: Endpoint
    template: TableTemplate
    tls: Tls | None
    source_kind: SourceKind

    @classmethod
    def of(cls, settings: MirrorSettings, source_kind: SourceKind) -> "MirrorSink":
        return cls(settings.url, settings.table, settings.tls, source_kind)

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

    def check(self, schemas: Sequence[TableSchema], job: JobIdentity | None = None) -> list[Finding]:
        with contextlib.closing(self.connect()) as session:
            return list(self._findings(session, schemas, job))

    def _places(self, session: Session, schemas: Sequence[TableSchema]) -> list[tuple[TableSchema, Place]]:
        return [(schema, place_of(schema.table, self.template, session.home)) for schema in schemas]

    def _findings(self, session: Session, schemas: Sequence[TableSchema], job: JobIdentity | None) -> Iterator[Finding]:
        places = self._places(session, schemas)
        needed = dict.fromkeys((session.home, *(place.schema for _, place in places)))
        if (problem := session.server_problem(list(needed))) is not None:
            yield Finding(None, *problem)
        for name in needed:
            if not session.schema_exists(name):
                yield Finding(None, f"schema {name} will be created")
        yield from route_problems(places, session.dialect)
        for schema, place in places:
            if not schema.key or not (
                session.dialect.name_fits(place.schema) and session.dialect.name_fits(place.table)
            ):
                continue
            existing = session.inspect(place)
            usable = existing is not None and existing.engine_problem is None
            found = Found(existing, not usable or session.is_empty(place), session.owner(place))
            yield from ownership_findings(schema, place, found, job)
            if existing is None:
                yield from type_findings(schema, session.dialect)
            else:
                yield from table_findings(schema, place, existing, session.dialect)

    def prepare(self, job: JobIdentity, schemas: Sequence[TableSchema]) -> None:
        with contextlib.closing(self.connect()) as session:
            raise_problems(list(self._findings(session, schemas, job)))
            places = self._places(session, schemas)
            for name in dict.fromkeys((session.home, *(place.schema for _, place in places))):
                if not session.schema_exists(name):
                    session.create_schema(name)
            session.create_bookkeeping()
            for schema, place in places:
                self._prepare_table(session, job, schema, place)

    def _prepare_table(self, session: Session, job: JobIdentity, schema: TableSchema, place: Place) -> None:
        owner = session.take(place, job, str(schema.table))
        if owner.job.uuid != job.uuid:
            raise SinkError(
                f"{place} was taken by job {owner.job.name} ({owner.job.uuid}) just now.",
                "Choose another place by sink.table.",
            )
        if session.inspect(place) is None:
            session.create_table(session.dialect.create_table(place, schema))
            created = session.inspect(place)
            if created is not None:
                raise_problems(list(table_findings(schema, place, created, session.dialect)))
        session.mark_created(place)

    def writer(self, job: JobIdentity) -> MirrorWriter:
        return MirrorWriter(self.connect, self.template, job)

    def committed_before(self, job: JobIdentity, epoch: int) -> None:
        with contextlib.closing(self.connect()) as session:
            session.forget_parts(job.uuid, epoch)
