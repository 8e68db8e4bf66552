"""The oracle: a files sink must hold a history of the source in which no row's story has a hole, a repeat or a step
back, and which ends at the source's state."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from tests.support.servers import Database
from tests.support.workload import KEYS
from tidemark.readers.snapshot.split_read import MAX_REREADS, emptying_seq, reread_seq

Key = tuple[Any, ...]
State = tuple[int, int]
"""(uid, version) of the row that has a key."""
FIRST_REREAD = reread_seq(1, 0)
SEQS_OF_A_VERSION = emptying_seq(2) - emptying_seq(1)


def is_reread(seq: int) -> bool:
    """True for the rows that a signal has had read again, False for those of splits, also of a table that came back."""
    return seq >= FIRST_REREAD and (seq - FIRST_REREAD) % SEQS_OF_A_VERSION < MAX_REREADS


def read_history(root: Path, schema: str, table: str) -> pa.Table:
    """All rows of a table's Parquet files in commit order: (uid, version, _change_type, …)."""
    folder = root / f"{schema}.{table}"
    rows = ds.dataset(folder, format="parquet", exclude_invalid_files=False).to_table()
    return rows.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])


def assert_history(history: pa.Table, source: dict[Key, State], *, name: str, key: tuple[str, ...]) -> None:
    """`source` is key → (uid, version). Raises AssertionError with the first wrong steps.

    The story is told by key, not by uid: a row that moves from one split to another is seen in both or in none of the
    snapshots, but what happens to a key is seen once and in order.
    """
    alive: dict[Key, State] = {}
    known: set[Key] = set()
    wrong: list[str] = []
    names = ("uid", "version", "_change_type", "_is_snapshot", "_txn_id", "_commit_version", "_seq")
    columns = [history.column(column).to_pylist() for column in names]
    keys = zip(*(history.column(column).to_pylist() for column in key), strict=True)
    for place, uid, version, kind, is_snapshot, transaction, commit, seq in zip(keys, *columns, strict=True):
        now = alive.get(place)
        story = f"{name} {place}: {kind} of {(uid, version)} at {commit}, after {now}"
        if kind == "truncate":
            alive.clear()
            known.clear()
            continue
        match kind:
            case "insert" if is_reread(seq):  # a signal had it read again: the copy has the same
                right = now == (uid, version)
            case "delete" if is_reread(seq):
                right = now is None
            case "insert" if is_snapshot and transaction is None:  # else one that was read again (docs/adr/0016)
                right = place not in known
                alive[place] = (uid, version)
            case "insert":
                right = now is None
                alive[place] = (uid, version)
            case "update_postimage":
                right = now == (uid, version - 1)
                alive[place] = (uid, version)
            case "delete":
                # PostgreSQL's log has the old row's key alone, unless the table's replica identity is full.
                right = now is not None if uid is None else now == (uid, version)
                alive.pop(place, None)
            case _:
                right = False
        known.add(place)
        if not right:
            wrong.append(story + (" (snapshot)" if is_snapshot else ""))
    missing = {place: state for place, state in source.items() if alive.get(place) != state}
    extra = {place: state for place, state in alive.items() if place not in source}
    assert not wrong, f"{len(wrong)} wrong steps: {wrong[:10]}"
    assert not missing, f"{name}: {len(missing)} rows differ from the source: {list(missing.items())[:10]}"
    assert not extra, f"{name}: {len(extra)} rows that the source does not have: {list(extra.items())[:10]}"


def assert_copied(root: Path, database: Database) -> int:
    """Compares every table's history with the source as it is now; returns how many history rows there were."""
    count = 0
    for table, key in KEYS.items():
        history = read_history(root, database.schema, table)
        count += history.num_rows
        rows = database.query(f"SELECT uid, version, {', '.join(key)} FROM {table}")
        assert_history(history, {row[2:]: row[:2] for row in rows}, name=table, key=key)
    return count


def assert_mirrored(source: Database, target: Database) -> None:
    """Compares the rows of a mirror's tables `copy_…` with the source as it is now."""
    for table, key in KEYS.items():
        query = f"SELECT {', '.join(key)}, uid, version FROM %s ORDER BY uid"
        assert target.query(query % f"copy_{table}") == source.query(query % table), table


def assert_newest_rows(root: Path, database: Database) -> None:
    """Raises AssertionError unless the newest change of each key tells the source's row. Says nothing about the older ones:
    they may have been lost by the source."""
    for table, key in KEYS.items():
        history = read_history(root, database.schema, table)
        kinds = history.column("_change_type").to_pylist()
        states = zip(history.column("uid").to_pylist(), history.column("version").to_pylist(), strict=True)
        keys = zip(*(history.column(name).to_pylist() for name in key), strict=True)
        alive: dict[Key, State] = {}
        for kind, place, state in zip(kinds, keys, states, strict=True):
            if kind == "truncate":
                alive.clear()
            elif kind == "delete":
                alive.pop(place, None)
            else:
                alive[place] = state
        rows = database.query(f"SELECT uid, version, {', '.join(key)} FROM {table}")
        assert alive == {row[2:]: row[:2] for row in rows}, table
