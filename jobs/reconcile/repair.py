"""Finds the ranges of the source's key that a job must read again so that the keys that differ are right.

A key is a range from it to the key after the next one that the source has. Where many keys are in one range of the comparison,
and the copy orders keys as the source does, that range is read instead.
"""

from tidemark.conf.model import JobFile
from tidemark.jobs.reconcile.key_ranges import MAX_RANGES, has_own_key, keys_of, ranges_around
from tidemark.jobs.reconcile.table_comparison import EVERYWHERE, Repair, TableResult
from tidemark.readers.source import PlannerAccess
from tidemark.sinks.comparing import Key
from tidemark.state.split import KeyRange
from tidemark.state.table import TableSchema

MANY_KEYS = 20
"""From so many differing keys in a range on, it is cheaper to read the whole range."""


def repair_of(
    access: PlannerAccess, job: JobFile, schema: TableSchema, columns: tuple[str, ...], result: TableResult
) -> Repair | None:
    """Returns what is to be read again. None if the keys can't be named to the source, or there are too many: then the table is
    read again as a whole. `schema`: as the source has it. `columns`: its split key."""
    output = result.schema
    if result.cut or not has_own_key(job, schema, output, columns):
        return None
    ranges, single = list[KeyRange](), list[Key]()
    for number, keys in result.keys.items():
        if number != EVERYWHERE and len(keys) >= MANY_KEYS and number in result.ranges:
            ranges.append(result.ranges[number].split.range)
        else:
            single += keys
    if len(ranges) + len(single) > MAX_RANGES:
        return None
    every = tuple(key for keys in result.keys.values() for key in keys)
    if keys_of(every, output) is None:
        return None
    values = keys_of(tuple(single), output)
    assert values is not None
    whole = ranges_around(access.keys, schema, columns, values) if single else ()
    return None if whole is None else Repair(every, tuple(ranges), whole)
