"""The golden files of all checkpoint formats: what an earlier Tidemark wrote is read by this one."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from devtools.checkpoint_files import BOUND, FINISHED, PUBLISHED_REPORT, PUBLISHED_ROWS, TABLE, VALUES
from scripts.checkpoint_formats import fields_file, fields_text, finished_file, golden_files, published_file
from tidemark.readers.log.gap_filter import GapFilter
from tidemark.readers.snapshot.published_file import check_file
from tidemark.state.checkpoint.codec import CODECS, Codec
from tidemark.state.checkpoint.upgrades import UPGRADES

kinds = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.kind)


@pytest.mark.pitfall(127)
@kinds
def test_the_golden_files_of_every_version_are_read(codec: Codec[object]) -> None:
    for version in range(1, codec.version + 1):
        paths = golden_files(codec, version)
        assert paths, f"version {version} has no golden file"
        found = [codec.decode(path.read_bytes(), path.name) for path in paths]
        if version == codec.version:
            assert found == list(VALUES[codec.kind])


@pytest.mark.pitfall(127)
@kinds
def test_fields_change_only_with_their_version(codec: Codec[object]) -> None:
    """If it fails: state/checkpoint/upgrades.py says what to do."""
    assert fields_file(codec).read_text() == fields_text(codec)


@pytest.mark.pitfall(127)
def test_a_version_has_a_step_from_each_older_one() -> None:
    assert set(UPGRADES) == {(codec.kind, version) for codec in CODECS for version in range(1, codec.version)}


@pytest.mark.pitfall(127)
def test_golden_files_of_published_rows_are_read() -> None:
    report, batches = check_file(pa.py_buffer(published_file("arrow").read_bytes()), "x")
    assert report == PUBLISHED_REPORT
    assert batches == (PUBLISHED_ROWS,)
    data = pa.py_buffer(published_file("parquet").read_bytes())
    assert check_file(data, "x") == (PUBLISHED_REPORT, ())
    rows = pq.read_table(pa.BufferReader(data)).to_pylist()
    assert [{**row, "_change_type": 0} for row in rows] == PUBLISHED_ROWS.to_pylist()
    assert {row["_change_type"] for row in rows} == {"insert"}


@pytest.mark.pitfall(127)
def test_the_golden_file_of_finished_splits_is_read() -> None:
    found = GapFilter.from_segments([finished_file().read_bytes()], [TABLE], "x").finished_splits[TABLE]
    assert found.boundaries.to_pylist() == [bytes.fromhex(BOUND.encoded_key)]
    assert found.highs.tolist() == [report.high.version for _, report in FINISHED]
    assert found.snapshots is not None
    assert found.snapshots.xmins.tolist() == [7, 8]


def test_each_kind_has_one_codec() -> None:
    assert sorted(VALUES) == sorted(codec.kind for codec in CODECS)
