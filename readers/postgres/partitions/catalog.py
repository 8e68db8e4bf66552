"""The job's tables: their names, storage files and partitions, and how these differ from earlier ones.

Only catalogs are read, in one query and without locks on the partitions. pg_partition_tree() is not used: it locks each
partition, and waits for a session that rewrites one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidemark.readers.postgres.connect import Connection
from tidemark.readers.postgres.schema.identity import is_gone, is_unlogged, was_renamed
from tidemark.readers.postgres.schema.types import INNER_TYPES
from tidemark.state.partitions import Partition, Partitions, WatchedTable
from tidemark.state.table import TableId

# A column's row in pg_attribute is written again when the column changes. The log lacks generated columns. A unique index is
# what identifies a row.
# A label's row in pg_enum is written again when it is renamed: if it has its name again, the log has rows with the other one.
_TABLES = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relpersistence = 'p',
       CASE WHEN c.relkind <> 'p' THEN c.relfilenode::bigint END,
       md5(concat(
           (SELECT string_agg(concat_ws(' ', a.attnum, a.xmin), ',' ORDER BY a.attnum) FROM pg_attribute AS a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''), ';',
           (SELECT string_agg(k.text, ',' ORDER BY k.text COLLATE "C") FROM pg_index AS i CROSS JOIN LATERAL (
                SELECT concat_ws(' ', i.indkey, i.indisprimary, i.indisvalid, i.indimmediate, i.indpred IS NULL)) AS k(text)
            WHERE i.indrelid = c.oid AND i.indisunique)))
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%s::oid[])"""
_TYPE_PARTS = f"""
WITH RECURSIVE types(root, attnum, type) AS (
    SELECT a.attrelid, a.attnum, a.atttypid FROM pg_attribute AS a
    WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT t.root, t.attnum, inner_type.oid FROM types AS t JOIN pg_type AS p ON p.oid = t.type
    CROSS JOIN LATERAL ({INNER_TYPES}
    ) AS inner_type(oid) WHERE inner_type.oid <> 0
)
SELECT t.root::bigint, concat_ws(' ', t.attnum, 'label', e.oid), e.enumlabel
FROM types AS t JOIN pg_enum AS e ON e.enumtypid = t.type
UNION ALL
SELECT t.root::bigint, concat_ws(' ', t.attnum, 'label written', e.oid), e.xmin::text
FROM types AS t JOIN pg_enum AS e ON e.enumtypid = t.type
UNION ALL
SELECT t.root::bigint, concat_ws(' ', t.attnum, 'attributes', p.oid), (
    SELECT string_agg(concat_ws(' ', a.attnum, a.attisdropped, a.atttypid, a.atttypmod), ',' ORDER BY a.attnum)
    FROM pg_attribute AS a WHERE a.attrelid = p.typrelid AND a.attnum > 0)
FROM types AS t JOIN pg_type AS p ON p.oid = t.type AND p.typrelid <> 0
ORDER BY 1, 2"""
_ENDED = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
# Tables that inherit from a table which is not partitioned are not its partitions: its rows are read without theirs.
_TREE = """
WITH RECURSIVE tree(root, oid, parent, attached) AS (
    SELECT i.inhparent, i.inhrelid, i.inhparent, i.xmin FROM pg_inherits AS i
    JOIN pg_class AS r ON r.oid = i.inhparent AND r.relkind = 'p'
    WHERE i.inhparent = ANY (%(roots)s::oid[]) AND NOT i.inhdetachpending
    UNION ALL
    SELECT t.root, i.inhrelid, i.inhparent, i.xmin
    FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid AND NOT i.inhdetachpending
)
SELECT t.root::bigint, c.oid::bigint, t.parent::bigint, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       t.attached::text::bigint, CASE WHEN c.relkind <> 'p' THEN c.relfilenode::bigint END
FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
ORDER BY 1, 2"""

# Hashes of 64 bits of all that these queries return, or that changes with it. A row's xmin is another one after each change.
_FINGERPRINT = f"""
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, concat_ws(' ',
    (SELECT concat_ws(' ', count(*), bit_xor(hashtextextended(concat_ws(' ', c.oid, n.nspname, c.relname, c.relpersistence,
        c.relfilenode), 0))) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.oid = ANY (%(roots)s::oid[])),
    (SELECT concat_ws(' ', count(*), bit_xor(hashint8extended(a.attrelid::bigint << 16 | a.attnum, a.xmin::text::bigint)))
     FROM pg_attribute AS a WHERE a.attrelid = ANY (%(roots)s::oid[]) AND a.attnum > 0),
    (SELECT concat_ws(' ', count(*), bit_xor(hashtextextended(concat_ws(' ', i.indexrelid, i.indkey, i.indisprimary,
        i.indisvalid, i.indimmediate, i.indpred IS NULL), 0))) FROM pg_index AS i
     WHERE i.indrelid = ANY (%(roots)s::oid[]) AND i.indisunique),
    (SELECT concat_ws(' ', count(*), bit_xor(hashint8extended(e.oid::bigint, e.xmin::text::bigint))) FROM pg_enum AS e),
    (WITH RECURSIVE types(type) AS (
        SELECT DISTINCT a.atttypid FROM pg_attribute AS a WHERE a.attrelid = ANY (%(roots)s::oid[]) AND a.attnum > 0
        UNION
        SELECT inner_type.oid FROM types AS t JOIN pg_type AS p ON p.oid = t.type CROSS JOIN LATERAL ({INNER_TYPES}
        ) AS inner_type(oid) WHERE inner_type.oid <> 0
     )
     SELECT concat_ws(' ', count(*), bit_xor(hashint8extended(a.attrelid::bigint << 16 | a.attnum, a.xmin::text::bigint)))
     FROM types AS t JOIN pg_type AS p ON p.oid = t.type AND p.typrelid <> 0
     JOIN pg_attribute AS a ON a.attrelid = p.typrelid),
    (SELECT concat_ws(' ', count(*), bit_xor(hashtextextended(t::text, 0))) FROM ({_TREE}) AS t))"""


def fingerprint(connection: Connection, oids: Sequence[int]) -> tuple[int, str]:
    """Returns an `ended_xid`, and a text that changes if `look` would find anything else. One query, one short row."""
    with connection.cursor() as cursor:
        cursor.execute(_FINGERPRINT, {"roots": list(oids)})
        ((ended_xid, text),) = cursor.fetchall()
    return int(ended_xid), str(text)


def first_look(connection: Connection, oids: Mapping[TableId, int]) -> Partitions:
    """Returns the tables as they are now, given their OIDs. Raises SchemaChangedError as `look` does."""
    return look(connection, Partitions(0, tuple(WatchedTable(table, oid) for table, oid in oids.items())))


def look(connection: Connection, known: Partitions) -> Partitions:
    """Returns the tables of `known` as they are now. Raises SchemaChangedError for a table that is gone, has another name, or
    is unlogged."""
    found: defaultdict[int, list[Partition]] = defaultdict(list)
    oids = [table.oid for table in known.tables]
    with connection.cursor() as cursor:
        cursor.execute(_ENDED)  # read before the catalogs: the catalogs' snapshot sees every transaction below it
        ((ended_xid,),) = cursor.fetchall()
        cursor.execute(_TABLES, (oids,))
        now = {int(row[0]): row[1:] for row in cursor.fetchall()}
        cursor.execute(_TREE, {"roots": oids})
        for root, oid, *rest in cursor.fetchall():
            found[root].append(Partition(oid, *rest))
        type_parts: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
        cursor.execute(_TYPE_PARTS, (oids,))
        for root, name, text in cursor.fetchall():
            type_parts[root].append((name, text))
    tables = []
    for table in known.tables:
        if table.oid not in now:
            raise is_gone(table.table)
        schema, name, is_logged, filenode, columns = now[table.oid]
        if TableId(schema, name) != table.table:
            raise was_renamed(table.table, TableId(schema, name))
        if not is_logged:
            raise is_unlogged(table.table)
        parts = tuple(type_parts[table.oid])
        tables.append(WatchedTable(table.table, table.oid, tuple(found[table.oid]), filenode, columns, parts))
    return Partitions(ended_xid, tuple(tables))


def values_of_older_rows(
    connection: Connection, before: WatchedTable, numbers: Sequence[int]
) -> dict[int, tuple[str, str]] | None:
    """Returns what new columns are in the rows that the table had before they were added, by column number: the value's type
    and text. Those that are NULL in these rows are missing. None if it is not certain.

    Such rows do not have the columns, and the catalog has the values (pg_attribute.attmissingval). VACUUM FULL and CLUSTER
    write them into the rows, keep the rows' transaction ids, and clear them in the catalog; but then the table has another
    file. `before`: the table without the columns. A partition that was created since has none of its rows, and no values if
    it was created with the columns."""
    files = {before.oid: before.filenode} | {partition.oid: partition.filenode for partition in before.partitions}
    values: dict[int, tuple[str, str]] = {}
    nulls: set[int] = set()
    with connection.cursor() as cursor:
        cursor.execute(_VALUES, {"oid": before.oid, "numbers": list(numbers)})
        for oid, file, number, is_missing, kind, text in cursor.fetchall():
            if file != files.get(oid, file and oid) or (is_missing and (kind is None or text is None)):
                return None
            if is_missing and values.setdefault(number, (kind, text)) != (kind, text):
                return None
            if not is_missing and file is not None and oid in files:
                nulls.add(number)
    return None if nulls.intersection(values) else values


def were_types_altered(connection: Connection, oid: int, numbers: Sequence[int], ended_xid: int) -> bool:
    """Returns True if a label or attribute of the columns' types was written since `ended_xid`, and not together with its
    type. `numbers`: of the table's columns."""
    arguments = {"oid": oid, "numbers": list(numbers), "last_xid": (ended_xid - 1) % 2**32}
    with connection.cursor() as cursor:
        cursor.execute(_ALTERED_TYPES, arguments)
        ((found,),) = cursor.fetchall()
    return bool(found)


# One query: it sees a rewrite and what the rewrite does to the columns, or neither.
_VALUES = """
WITH RECURSIVE tree(oid) AS (
    SELECT %(oid)s::oid UNION SELECT i.inhrelid FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid
    JOIN pg_class AS r ON r.oid = t.oid AND r.relkind = 'p')
SELECT c.oid::bigint, CASE WHEN c.relkind <> 'p' THEN c.relfilenode::bigint END, r.attnum, a.atthasmissing,
       CASE WHEN y.typtype = 'e' THEN 'enum' WHEN y.typnamespace = 'pg_catalog'::regnamespace AND y.typtype = 'b'
            THEN y.typname::text END,
       CASE WHEN y.typtype IN ('b', 'e') AND y.typcategory <> 'A' AND y.typdelim = ','
            THEN (a.attmissingval::text::text[])[1] END
FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid
JOIN pg_attribute AS r ON r.attrelid = %(oid)s::oid AND r.attnum = ANY (%(numbers)s::int2[])
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = r.attname AND NOT a.attisdropped
JOIN pg_type AS y ON y.oid = a.atttypid"""
_ALTERED_TYPES = f"""
WITH RECURSIVE types(type) AS (
    SELECT a.atttypid FROM pg_attribute AS a
    WHERE a.attrelid = %(oid)s::oid AND a.attnum = ANY (%(numbers)s::int2[])
    UNION
    SELECT inner_type.oid FROM types AS t JOIN pg_type AS p ON p.oid = t.type
    CROSS JOIN LATERAL ({INNER_TYPES}
    ) AS inner_type(oid) WHERE inner_type.oid <> 0
)
SELECT EXISTS (
    SELECT FROM types AS t JOIN pg_type AS p ON p.oid = t.type CROSS JOIN LATERAL (
        SELECT e.xmin FROM pg_enum AS e WHERE e.enumtypid = p.oid
        UNION ALL SELECT a.xmin FROM pg_attribute AS a WHERE a.attrelid = p.typrelid AND a.attnum > 0
    ) AS part(xid)
    WHERE part.xid <> p.xmin AND age(part.xid) >= 0 AND age(part.xid) < age(%(last_xid)s::text::xid))"""


@dataclass(frozen=True, slots=True)
class Attached:
    """A leaf, and the relations on its path to the root (the leaf included, lowest first) whose attachment is new."""

    leaf: Partition
    edges: tuple[Partition, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences between the leaves, which are the relations with rows. `rewritten`: leaves with another storage file
    than before, or, if attached, than when they were created. A leaf that was detached and attached again is both removed
    and attached."""

    attached: tuple[Attached, ...] = ()
    removed: tuple[Partition, ...] = ()
    rewritten: tuple[Partition, ...] = ()


def differences(before: WatchedTable, now: WatchedTable) -> Differences:
    if before == now or now.filenode is not None:  # a table that has rows of its own has no partitions
        return Differences()
    old, new = _paths(before), _paths(now)
    kept = {oid for oid, path in new.items() if oid in old and _edges(old[oid]) == _edges(path)}
    old_edges = {_edge(partition) for partition in before.partitions}
    attached = [
        Attached(path[0], tuple(p for p in path if _edge(p) not in old_edges))
        for oid, path in new.items()
        if oid not in kept
    ]
    removed = [path[0] for oid, path in old.items() if oid not in kept]
    first_filenodes = {oid: old[oid][0].filenode if oid in old else oid for oid in new}
    rewritten = [path[0] for oid, path in new.items() if path[0].filenode != first_filenodes[oid]]
    return Differences(tuple(attached), tuple(removed), tuple(rewritten))


def _paths(table: WatchedTable) -> Mapping[int, tuple[Partition, ...]]:
    """Returns each leaf's path up to the table, by the leaf's OID."""
    by_oid = {partition.oid: partition for partition in table.partitions}
    paths = {}
    for leaf in table.partitions:
        if leaf.filenode is None:
            continue
        path = [leaf]
        while (above := by_oid.get(path[-1].parent_oid)) is not None:
            path.append(above)
        paths[leaf.oid] = tuple(path)
    return paths


def _edge(partition: Partition) -> tuple[int, int, int]:
    return partition.oid, partition.parent_oid, partition.attached_xid


def _edges(path: tuple[Partition, ...]) -> list[tuple[int, int, int]]:
    return [_edge(partition) for partition in path]
