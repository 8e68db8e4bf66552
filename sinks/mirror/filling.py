"""Writes the changes of a part into the copies, in the open transaction of one session."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from tidemark.conf.tables import TableName, TableTemplate
from tidemark.sinks.audit import AuditColumns, Marks
from tidemark.sinks.mirror import buckets
from tidemark.sinks.mirror.ahead import ahead
from tidemark.sinks.mirror.audit import audit_findings
from tidemark.sinks.mirror.bad_values import Policies, ValueGate
from tidemark.sinks.mirror.buckets import Buckets, Portion, bucket_part, has_buckets
from tidemark.sinks.mirror.enum_labels import enums_of, new_labels
from tidemark.sinks.mirror.ordering import orders_alike
from tidemark.sinks.mirror.planning import (
    emptied,
    has_independent_rows,
    table_findings,
    target_of,
)
from tidemark.sinks.mirror.rejects import Rejects
from tidemark.sinks.mirror.table_writing import DeletedRows, Step, TableWriting
from tidemark.sinks.mirror.target import Session, TargetName, TargetTable
from tidemark.sinks.mirror.value_ranges import EnumOfPostgres
from tidemark.sinks.parts import Part, check_repeated_table
from tidemark.sinks.sink import BadValues, Finding, Schemas, raise_problems
from tidemark.state.change_batch import LOG_PART, ReplacedRange, table_part
from tidemark.state.errors import RefusedRowsError, RefusedValueError, SinkError
from tidemark.state.remedies import START_OVER_NOW, read_again
from tidemark.state.table import TableId, TableSchema

Chunk: TypeAlias = dict[tuple[TableId, int], list[pa.RecordBatch]]
"""Changes by table and schema version, in the order of the log; tables in the order of their first change."""


@dataclass(frozen=True, slots=True)
class PreparedChanges:
    """Changes of one table and schema version: `steps` writes them. `steps` None: the table was not written yet, so the
    target must first be asked for its columns."""

    batches: list[pa.RecordBatch]
    steps: list[Step] | None


PreparedChunk: TypeAlias = dict[tuple[TableId, int], PreparedChanges]


@dataclass(frozen=True, slots=True)
class Copies:
    """Where copies are, and how rows are written to them. `claims`: a table of a log part, or some buckets of it, may be
    written by another transaction than the rest, so each table or bucket that is written gets a ledger entry of its own.
    `connect`: opens a further session."""

    template: TableTemplate
    policies: Policies
    audit: AuditColumns
    claims: bool
    connect: Callable[[], Session]


@dataclass(slots=True)
class Filling:
    """One for each transaction. What the ledger has already of the part, tables and buckets of tables, is left out."""

    session: Session
    copies: Copies
    part: Part
    schemas: Schemas
    rejects: Rejects
    marks: Marks
    _writings: dict[TableId, TableWriting] = field(default_factory=dict)
    _rows: Counter[TableId] = field(default_factory=Counter)
    _entries: dict[str, int] | None = None
    _done: dict[TableId, int] = field(default_factory=dict)
    _noted: dict[TargetName, TargetTable] = field(default_factory=dict)
    _replaced: ReplacedRange | None = None
    _divided: dict[TableId, Buckets] = field(default_factory=dict)
    _portions: dict[TableId, Portion] = field(default_factory=dict)
    _enums: dict[TableId, dict[str, EnumOfPostgres]] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session, copies: Copies, job_uuid: str, part: Part, schemas: Schemas) -> "Filling":
        rejects = Rejects(session, job_uuid, part.epoch, part.name)
        return cls(session, copies, part, schemas, rejects, copies.audit.marks(session))

    def may_be_divided(self, table: TableId, chunk: Chunk) -> bool:
        """True if several transactions may write the table's changes, each some buckets: rows of different keys do not depend
        on each other, as far as the copy and these changes tell."""
        found = [(self.schemas[key], batches) for key, batches in chunk.items() if key[0] == table]
        first, _ = found[0]
        if not self.session.locks_only_rows or self.copies.audit.keeps_deleted or not has_buckets(first):
            return False
        if any(schema.key != first.key or buckets.obstacle(schema, batches) for schema, batches in found):
            return False
        existing = self.session.inspect(self._target_of(first))
        return existing is not None and has_independent_rows(first, existing, self.session.dialect)

    def apply(self, chunk: Chunk, divided: Mapping[TableId, Buckets] | None = None) -> None:
        """Writes the next changes. `divided`: of tables that other transactions write, too, the buckets that this one writes.
        A table has the same ones each time."""
        self._divided.update(divided or {})
        self._write({key: PreparedChanges(batches, None) for key, batches in chunk.items()})

    def apply_all(self, chunks: Iterator[Chunk]) -> None:
        """Writes further changes. A thread reads and prepares the next chunk while one is written."""
        with contextlib.closing(ahead(map(self._prepare, chunks))) as prepared:
            for chunk in prepared:
                self._write(chunk)

    def _prepare(self, chunk: Chunk) -> PreparedChunk:
        """Does not use the session. Another thread may be in `_write`."""
        return {
            (table, version): PreparedChanges(
                batches, self._steps(table, version, batches) if table in self._writings else None
            )
            for (table, version), batches in chunk.items()
        }

    def _steps(self, table: TableId, version: int, batches: list[pa.RecordBatch]) -> list[Step]:
        is_log = self.part.name == LOG_PART
        if table in self._portions:
            batches = self._portions[table].rows_left(self.schemas[table, version], batches)
        try:
            return self._writings[table].prepared(self.schemas[table, version], batches, is_log=is_log)
        except RefusedRowsError as error:
            raise self._of_table(error, table) from error

    def _write(self, chunk: PreparedChunk) -> None:
        new = {key[0]: self.schemas[key] for key in reversed(chunk) if key[0] not in self._rows}
        self._leave_out_done(new)
        for (table, version), changes in chunk.items():
            self._rows[table] += sum(batch.num_rows for batch in changes.batches)
            if table in self._portions:
                self._portions[table].count(self.schemas[table, version], changes.batches)
        chunk = {key: changes for key, changes in chunk.items() if key[0] not in self._done}
        existing = self._inspected([self.schemas[key] for key in chunk if key[0] not in self._writings])
        for table, version in chunk:
            if table not in self._writings:
                self._writings[table] = self._writing(self.schemas[table, version], existing)
        self._require_labels(chunk)
        for (table, version), changes in chunk.items():
            steps = self._steps(table, version, changes.batches) if changes.steps is None else changes.steps
            try:
                for step in steps:
                    step()
            except RefusedRowsError as error:
                raise self._of_table(error, table) from error

    def _require_labels(self, chunk: PreparedChunk) -> None:
        """Lets the copies' enums have the labels of these changes: the source may have got them since the driver looked. A
        further session adds them: a transaction can't use its own. Raises SinkError for an enum of another role."""
        missing: dict[str, tuple[TableId, list[str]]] = {}
        for (table, _), changes in chunk.items():
            for enum, labels in new_labels(self._enums[table], changes.batches).items():
                _, earlier = missing.get(enum, (table, []))
                missing[enum] = table, list(dict.fromkeys([*earlier, *labels]))
                self._require_growing(table, enum, labels)
        if not missing:
            return
        with contextlib.closing(self.copies.connect()) as session:
            for enum, (table, labels) in missing.items():
                try:
                    session.add_labels(enum, labels)
                except SinkError as error:
                    raise SinkError(error.message, error.remedy, table) from error
        for enums in self._enums.values():
            for name, held in enums.items():
                _, labels = missing.get(held.full_name, (None, []))
                enums[name] = replace(held, labels=(*held.labels, *labels))

    def _require_growing(self, table: TableId, enum: str, labels: Sequence[str]) -> None:
        if not all(held.can_grow for held in self._enums[table].values() if held.full_name == enum):
            raise SinkError(
                f"{table} has labels that the target's enum {enum} lacks, and another role owns it: {', '.join(labels)}.",
                f"Add them there (ALTER TYPE … ADD VALUE), or let the role of sink.url own the type. "
                f"{read_again(TableName(table.database, table.name))}",
                table,
            )

    def replace(self, replaced: ReplacedRange) -> None:
        """Removes what the copy has in the part's range. Its rows are written after that, in the same transaction."""
        schema = self.schemas[replaced.table, replaced.schema_version]
        existing = self._inspected([schema])
        writing = self._writings[schema.table] = self._writing(schema, existing)
        target, keys = self._target_of(schema), replaced.range
        if not orders_alike(self.session, target, existing[target], dict(zip(keys.columns, keys.orders, strict=True))):
            raise SinkError(
                f"{target}: it is no longer certain that the key's columns ({', '.join(keys.columns)}) are ordered as in the "
                "source.",
                "Give them their types and collations again. "
                f"{read_again(TableName(schema.table.database, schema.table.name))}",
                schema.table,
            )
        self._replaced = replaced
        try:
            writing.replace(schema, keys, replaced.after_epoch)
        except RefusedRowsError as error:
            raise self._of_table(error, schema.table) from error

    def _require_order(self) -> None:
        """Raises SinkError if the target has not all rows of the part's range in it. The orders are the same by their names;
        this finds a server that is not what its catalog says."""
        if self._replaced is None:
            return
        table, keys = self._replaced.table, self._replaced.range
        writing = self._writings[table]
        if keys.integers is None and (found := writing.rows.count_range(keys)) != writing.inserted:
            schema = self.schemas[table, self._replaced.schema_version]
            raise SinkError(
                f"{self._target_of(schema)} has {found} rows in a range of its key into which {writing.inserted} rows were "
                f"written: the target orders {', '.join(keys.columns)} differently from the source.",
                f"Drop that copy. {read_again(TableName(table.database, table.name))} "
                "Please report this with the column's type and collation.",
                table,
            )

    def _inspected(self, schemas: Sequence[TableSchema]) -> dict[TargetName, TargetTable]:
        existing = self.session.inspect_all([self._target_of(schema) for schema in schemas])
        noted = self._require_rows(schemas, existing)
        for schema in schemas:  # of several transactions, one may change the table's row
            if 0 not in self._divided.get(schema.table, buckets.ALL):
                noted.pop(self._target_of(schema), None)
        self._noted |= noted
        return existing

    def finish(self) -> None:
        """Writes what belongs to the transaction's end. The part is complete."""
        for table, recorded in self._done.items():
            check_repeated_table(self.part, table, self._rows[table], recorded)
        self._require_order()
        for portion in self._portions.values():
            portion.check(self.part)
        if self.copies.claims and self.part.name == LOG_PART:
            self.session.note_entries(dict(self._entries_of_writings()))
        self.session.note_incarnations(self._noted)  # last: splits of one table are written side by side

    def told(self) -> tuple[BadValues, ...]:
        return tuple(told for writing in self._writings.values() for told in writing.told())

    def _entries_of_writings(self) -> Iterator[tuple[str, int]]:
        for table in self._writings:
            if table in self._divided:
                portion = self._portions[table]
                yield from ((bucket_part(table, bucket), int(portion.counts[bucket])) for bucket in portion.left)
            else:
                yield table_part(table), self._rows[table]

    def _leave_out_done(self, new: Mapping[TableId, TableSchema]) -> None:
        """Finds the changes of new tables in this part that other transactions have committed. Waits for one that may do so."""
        if not new or self.part.name != LOG_PART:
            return
        if self.copies.claims:
            self.session.claim_entries([part for schema in new.values() for part in self._claims(schema)])
        if self.copies.claims or self._entries is None:
            self._entries = self.session.entries_written()
        for table, schema in new.items():
            if (recorded := self._entries.get(table_part(table))) is not None:
                self._done[table] = recorded
                continue
            found = {bucket: self._entries.get(bucket_part(table, bucket)) for bucket in buckets.ALL}
            done = {bucket: count for bucket, count in found.items() if count is not None}
            if done or table in self._divided:
                left = self._divided.get(table, buckets.ALL) - done.keys()
                self._portions[table] = Portion(table, schema.key, left, done)

    def _claims(self, schema: TableSchema) -> list[str]:
        """Returns the ledger entries of what this transaction writes of a table. One that writes all of it claims each bucket,
        too: another attempt may have written a bucket, and be about to commit."""
        table = schema.table
        if table in self._divided:
            return [bucket_part(table, bucket) for bucket in self._divided[table]]
        is_divisible = self.session.locks_only_rows and has_buckets(schema)
        return [table_part(table), *(bucket_part(table, bucket) for bucket in buckets.ALL if is_divisible)]

    def _target_of(self, schema: TableSchema) -> TargetName:
        return target_of(schema.table, self.copies.template, self.session.home)

    def _require_rows(
        self, schemas: Iterable[TableSchema], existing: Mapping[TargetName, TargetTable]
    ) -> dict[TargetName, TargetTable]:
        """Raises SinkError for a copy that somebody emptied or created again. One that was rewritten with its rows goes on.
        Returns the tables that the job has not seen with rows yet, or not as they are now."""
        seen, noted = self.session.incarnations(existing), dict[TargetName, TargetTable]()
        for schema in schemas:
            target = self._target_of(schema)
            table = existing.get(target)
            if table is None or table.incarnation in (None, seen.get(target)):
                continue
            if target in seen and self.session.is_empty(target):
                _raise_of(schema.table, [emptied(schema.table, target)])
            noted[target] = table
        return noted

    def _of_table(self, error: RefusedRowsError, table: TableId) -> RefusedRowsError:
        """Returns the error as one of the table alone: the transaction has nothing of what the server has refused."""
        if error.table is not None or isinstance(error, RefusedValueError) or self.copies.policies.default == "stop":
            return error
        return RefusedRowsError(error.message, error.remedy, table)

    def _writing(self, schema: TableSchema, tables: Mapping[TargetName, TargetTable]) -> TableWriting:
        """Checks the table again: if it was altered since `prepare`, it could silently round values."""
        session, policies, audit = self.session, self.copies.policies, self.copies.audit
        target = self._target_of(schema)
        existing = tables.get(target)
        if existing is None:
            raise SinkError(
                f"{target}, the copy of {schema.table}, is gone.",
                START_OVER_NOW,
                schema.table,
            )
        _raise_of(schema.table, audit_findings(audit, schema, existing, session.dialect))
        extended = audit.extended(schema)
        _raise_of(schema.table, table_findings(extended, target, existing, session.dialect))
        if schema.table in self._divided and not has_independent_rows(schema, existing, session.dialect):
            raise SinkError(f"{target} was altered just now.", "Start the job again.", schema.table)
        self._enums[schema.table] = enums_of(schema, existing, session.dialect)
        rows = session.rows(target, extended, existing, self.marks.removed)
        gate = ValueGate(schema, policies, rows.bad_values, rows.as_text)
        if not audit.keeps_deleted:
            return TableWriting(rows, gate, self.rejects, self.marks)
        deleted = DeletedRows(session.rows(target, extended, existing, repeats=True), replace(gate, counts=Counter()))
        return TableWriting(rows, gate, self.rejects, self.marks, deleted, is_read_again=schema.version > 1)


def _raise_of(table: TableId, findings: Iterable[Finding]) -> None:
    """Raises SinkError with all problems of a table. They concern that table alone."""
    try:
        raise_problems(list(findings))
    except SinkError as error:
        raise SinkError(error.message, error.remedy, table) from None
