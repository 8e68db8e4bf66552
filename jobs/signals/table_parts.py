"""Parts of a table that a signal has read again: `tidemark signal JOB.yaml resnapshot --table T --keys … | --where …`.

What the user wrote is checked twice: by the command, against the tables as the checkpoint has them, and by the driver.
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tidemark.conf.condition import check_given_condition
from tidemark.conf.model import JobFile
from tidemark.conf.tables import TableName
from tidemark.jobs.reconcile.key_ranges import MAX_RANGES, has_own_key, is_readable, keys_of, ranges_around
from tidemark.jobs.sinks import comparable_sink, sink_needs
from tidemark.jobs.tables.integer_keys import same_integers
from tidemark.readers.source import BoundsKeys
from tidemark.sinks.comparing import Key
from tidemark.state.integer_range import IntegerRange
from tidemark.state.job_state import JobState
from tidemark.state.key_source import KeySource
from tidemark.state.remedies import read_again as whole_table
from tidemark.state.signals import Signal
from tidemark.state.split import Bound, KeyRange
from tidemark.state.table import TableSchema, arrow_type_of

MAX_SURPLUS = 10_000
"""The most rows that only the copy has and that one batch of a range of keys deletes."""
_VALUE = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<bare>(?:(?!\.\.)[^",])+))\s*(?P<mark>,|\.\.|$)')
HOW_TO_WRITE = (
    "Write 5, or 5..90, which has both ends. Write 5,2 for a key of two columns, and "
    '"a,b" in double quotes for a value with a comma, two dots or quotes.'
)


class PartRefusedError(Exception):
    """A part that can't be read. Its text is for the user."""


def parse_keys(text: str) -> tuple[Key, ...]:
    """Returns the key that `--keys` names, or the first and the last one of a range. Raises PartRefusedError."""
    keys, at = [list[str]()], 0
    while True:
        found = _VALUE.match(text, at)
        if found is None:
            raise PartRefusedError(f"{text!r} is no key.")
        quoted, bare, mark = found["quoted"], found["bare"], found["mark"]
        keys[-1].append(bare.strip() if quoted is None else quoted.replace('""', '"'))
        at = found.end()
        if not mark:
            break
        if mark == "..":
            keys.append([])
    if len(keys) > 2:
        raise PartRefusedError(f"{text!r} has more than two ends.")
    return tuple(map(tuple, keys))


def require_part(job: JobFile, state: JobState, signal: Signal) -> None:
    """Raises PartRefusedError unless this part of the table can be read again, as far as that is known without the source."""
    table = signal.table
    assert table is not None
    schema = next((schema for schema in state.schemas if schema.table == table), None)
    name = TableName(table.database, table.name)
    if job.mode != "full+incremental":
        raise PartRefusedError(f"Mode {job.mode} can't read rows again. Only mode full+incremental can.")
    if sink_needs(job.sink).holds is None:
        raise PartRefusedError(
            f"Sink {job.sink.type} has no copy of which a part could be read again. Leave out --keys and --where to have the "
            "whole table read again."
        )
    if schema is None and table in state.left_tables:
        raise PartRefusedError(f"{table} is parked, paused or excluded: its copy lacks changes. {whole_table(name)}")
    if schema is None:
        raise PartRefusedError(f"The job does not copy {table}.")
    columns = {split_key.table: split_key.columns for split_key in state.split_keys}.get(table, ())
    output = next(output for output in state.outputs if output.table == table)
    if not columns or not output.key:
        raise PartRefusedError(f"{table} has no key, or its rows were not copied. Only a whole table can be read then.")
    if signal.where:
        try:
            check_given_condition(signal.where, backticks_quote=job.source.url.kind != "postgresql")
        except ValueError as error:
            raise PartRefusedError(f"--where {error}.") from error
        return
    if not has_own_key(job, schema, output, columns):
        raise PartRefusedError(f"A mask or a transform makes the key of the copy of {table}. Name its rows by --where.")
    _require_values(output, signal.keys or signal.span)
    if len(signal.keys) > MAX_RANGES:
        raise PartRefusedError(f"One signal takes at most {MAX_RANGES:,} keys.")
    if signal.span:
        if not same_integers(job, schema, output, columns) or columns != output.key[: len(columns)]:
            raise PartRefusedError(
                f"A range of keys needs a key of integers, because databases order other keys differently. The key of {table} "
                f"is {', '.join(output.key)}. Name each key, or use --where."
            )
        first, last = key_values_of(signal.span, output)
        if first > last:
            raise PartRefusedError("The range of keys ends before it begins.")


def _require_values(output: TableSchema, keys: Sequence[Key]) -> None:
    for key in keys:
        if len(key) != len(output.key):
            names = ", ".join(output.key)
            raise PartRefusedError(
                f"{','.join(key)!r} has {len(key)} values, and the key of {output.table} has {len(output.key)}: {names}."
            )
    for name in output.key:
        column = output.column(name)
        if not is_readable(arrow_type_of(column.arrow_type)):
            raise PartRefusedError(f"Values of {name} ({column.source_type}) can't be named by --keys. Use --where.")
    for key in keys:
        if keys_of((key,), output) is None:
            names = ", ".join(f"{name} {output.column(name).source_type}" for name in output.key)
            raise PartRefusedError(f"{','.join(key)!r} is no key of {output.table} ({names}).")


def key_values_of(keys: Sequence[Key], output: TableSchema) -> list[tuple[int, ...]]:
    """Returns keys of integers as such."""
    found = keys_of(tuple(keys), output)
    assert found is not None, "require_part has read these keys"
    return [tuple(map(int, row)) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)]


def with_ranges(
    keys: KeySource, schema: TableSchema, output: TableSchema, columns: tuple[str, ...], signal: Signal
) -> Signal:
    """Returns a signal of single keys with the ranges to read. Raises PartRefusedError if the source can't be given a key."""
    values = keys_of(signal.keys, output)
    assert values is not None, "require_part has read these keys"
    whole = ranges_around(keys, schema, columns, values)
    if whole is None:
        raise PartRefusedError(f"The source can't be given one of the keys of {schema.table}. Use --where.")
    return replace(signal, whole=whole)


def range_of(
    keys: KeySource, schema: TableSchema, output: TableSchema, columns: tuple[str, ...], signal: Signal
) -> KeyRange:
    """Returns the range of the source's key that the signal is about. Its end may be behind that of `span` if no key between
    them can be named. Raises PartRefusedError if the source can't be given an end."""
    if not signal.span:
        return KeyRange(None, None)
    first, last = (tuple(map(str, key)) for key in key_values_of(signal.span, output))
    behind = (*last[: len(columns) - 1], str(int(last[len(columns) - 1]) + 1), *last[len(columns) :])
    ends = keys_of((first, behind), output)
    if ends is None:  # the last value is the type's greatest
        ends = keys_of((first, last), output)
        assert ends is not None
        start, end = _bounds(keys, schema, columns, ends)
        following = keys.next_bounds(schema.table, columns, after=end, until=None, rows=1, count=1)
        return KeyRange(start, following[0] if following else None)
    return KeyRange(*_bounds(keys, schema, columns, ends))


def _bounds(keys: KeySource, schema: TableSchema, columns: tuple[str, ...], ends: pa.RecordBatch) -> Sequence[Bound]:
    bounds = keys.bounds_of(schema.table, columns, ends) if isinstance(keys, BoundsKeys) else None
    if bounds is None:
        raise PartRefusedError(f"The source can't be given an end of the range of {schema.table}. Use --where.")
    return bounds


def copied_keys(job: JobFile, output: TableSchema, within: IntegerRange, rows: int) -> pa.RecordBatch:
    """Returns the keys that the copy has in a range. `rows`: how many the source has. Raises PartRefusedError if the copy has
    many more, and SinkError if it can't be read."""
    limit = rows + MAX_SURPLUS + 1
    found = tuple(comparable_sink(job).keys_within(output, within, limit))
    if len(found) == limit:
        raise PartRefusedError(
            f"In this range the copy of {output.table} has more than {MAX_SURPLUS:,} rows that the source lacks. Have the "
            "whole table read again."
        )
    keys = keys_of(found, output)
    assert keys is not None, "they are integers"
    return keys
