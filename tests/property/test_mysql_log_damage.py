"""Damaged and hostile bytes in place of a log: refused, or read as what they are; never a crash, never other rows.

`python -m tests.property.test_mysql_log_damage N` reads N mutated logs; with NUMBA_DISABLE_JIT=1 the compiled loops run as
plain Python, where an index beyond an array's end is an IndexError.
"""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import log_bytes as lb
from tidemark.readers.mysql.binlog import reading as log_reading
from tidemark.readers.mysql.binlog.reader import LogReader
from tidemark.readers.mysql.binlog.reading_state import ReadOptions
from tidemark.state.errors import TidemarkError
from tidemark.state.log_range import LogRange
from tidemark.state.position import BinlogPosition
from tidemark.state.table import TableId

OTHER = TableId("shop", "other")
SMALL = ReadOptions(receive_bytes=9000, unpack_bytes=700, column_buffer_bytes=680)
WHOLE = ReadOptions(receive_bytes=1 << 16, unpack_bytes=1 << 14, column_buffer_bytes=1 << 16)


def xa(verb: str) -> tuple[int, bytes]:
    return lb.query(f"XA {verb} X'6b',X'',1")


def log() -> list[lb.LogFile]:
    """A log with a little of everything."""
    begin = lb.query("BEGIN")
    changes = [
        lb.table_map(9), lb.write(9, (1, "a"), (2, None), (3, "ü" * 9)), lb.table_map(10, OTHER), lb.write(10, (1, "other")),
        lb.table_map(9), lb.update(9, ((1, "a"), (1, "b")), ((2, None), (7, "moved"))), lb.delete(9, (3, "ü" * 9)),
    ]  # fmt: skip
    many = [
        part for n in range(30) for part in (lb.table_map(9), lb.write(9, *((n * 9 + i, "x" * i) for i in range(9))))
    ]
    first = lb.LogFile("log.000001")
    first.add(
        lb.previous_gtids(0), lb.gtid(1), begin, *changes, lb.xid(), lb.gtid(2),
        lb.payload([begin, *changes, lb.xid()]), lb.gtid(3), xa("START"), *changes, xa("END"), lb.xa_prepare(b"k"),
        lb.gtid(4), begin, lb.query("SAVEPOINT a"), *changes, lb.query("ROLLBACK TO a"), *many,
        lb.query("COMMIT"), lb.gtid(5), xa("COMMIT"), lb.rotate("log.000002"),
    )  # fmt: skip
    second = lb.LogFile("log.000002")
    second.add(
        lb.previous_gtids(5), lb.gtid(6), lb.query("CREATE TABLE x (id int)"), lb.gtid(7), lb.payload([begin, *many, lb.xid()]),
        lb.gtid(8), begin, (29, b"query"), *changes, lb.xid(),
    )  # fmt: skip
    return [first, second]


def read(server: lb.LogServer, options: ReadOptions) -> tuple[list[tuple[Any, ...]], TidemarkError | None]:
    """Reads the log. Returns the rows that were handed out, and the error that ended it."""
    reader = LogReader(server, {lb.TABLE: lb.schema()}, options)
    part = LogRange(BinlogPosition("log.000001", 4, ""), BinlogPosition("log.000002", server.files[-1].end))
    found: list[tuple[Any, ...]] = []
    names = ("_commit_version", "_seq", "_change_type", "id", "v", "_txn_id")
    try:
        for batch in reader.read(part):
            found += zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True)
    except TidemarkError as error:
        return found, error
    finally:
        server.join()
    return found, None


@pytest.fixture(scope="module", autouse=True)
def few_attempts() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_reading, "FIRST_DELAY_SECONDS", 0.0)
        patch.setattr(log_reading, "ATTEMPTS", 2)
        yield


@pytest.fixture(scope="module")
def expected() -> list[tuple[Any, ...]]:
    found, error = read(lb.LogServer(log()), WHOLE)
    assert error is None
    assert len(found) > 500
    assert read(lb.LogServer(log()), SMALL) == (found, None)
    return found


@pytest.mark.pitfall(52)
@pytest.mark.pitfall(88)
@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=3),
    st.sampled_from([SMALL, WHOLE]),
)
def test_flipped_bits_are_noticed(
    expected: list[tuple[Any, ...]], flips: list[tuple[float, int]], options: ReadOptions
) -> None:
    def damage(data: bytes) -> bytes:
        changed = bytearray(data)
        for place, bits in flips:
            changed[int(place * len(changed))] ^= bits
        return bytes(changed)

    found, error = read(lb.LogServer(log(), damage=damage), options)
    assert found == expected[: len(found)]
    if error is None:
        assert found == expected


@pytest.mark.pitfall(88)
@settings(max_examples=60)
@given(st.integers(0, 20_000))
def test_cut_off_anywhere(expected: list[tuple[Any, ...]], size: int) -> None:
    found, error = read(lb.LogServer(log(), damage=lambda data: data[:size]), WHOLE)
    assert found == expected[: len(found)]
    assert error is not None or found == expected


def mutated(seed: int) -> lb.LogServer:
    """A log in which some events have other content under right checksums."""
    rng = random.Random(seed)
    files = log()
    for file in files:
        for number, (place, content) in enumerate(file.events):
            if rng.random() < 0.04:
                changed = bytearray(content[:-4])
                for _ in range(rng.choice([1, 1, 2, 8])):
                    at = rng.choice([4, *range(19, len(changed))])
                    changed[at] = rng.choice([0, 1, 127, 128, 250, 251, 252, 253, 254, 255, rng.randrange(256)])
                if rng.random() < 0.2:
                    changed = changed[: max(19, len(changed) - rng.randrange(20))]
                if rng.random() < 0.1:
                    changed += rng.randbytes(rng.randrange(20))
                size = len(changed) + 4
                if size != len(content) and rng.random() < 0.8:
                    continue  # places would no longer fit together, which is noticed at once
                changed[9:13] = size.to_bytes(4, "little")
                file.events[number] = (place, bytes(changed) + lb.checksum_of(bytes(changed)))
    return lb.LogServer(files)


def read_mutated(seeds: range) -> int:
    """Reads mutated logs; any exception but a TidemarkError goes through. Returns how many were read to their end."""
    return sum(read(mutated(seed), SMALL if seed % 2 else WHOLE)[1] is None for seed in seeds)


@pytest.mark.pitfall(88)
def test_other_content_under_right_checksums_is_read_or_refused() -> None:
    assert 0 < read_mutated(range(400)) < 400


@pytest.mark.pitfall(88)
def test_no_index_is_beyond_its_array() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.property.test_mysql_log_damage", "60"],
        cwd=root,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


if __name__ == "__main__":
    log_reading.FIRST_DELAY_SECONDS = 0.0
    log_reading.ATTEMPTS = 2
    start = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    print(read_mutated(range(start, start + int(sys.argv[1]))))
