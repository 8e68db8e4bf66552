import json
from typing import Any

import pytest

from devtools.checkpoint_files import SNAPSHOT_PLAN, VALUES
from tidemark import __version__
from tidemark.state.checkpoint import codec
from tidemark.state.checkpoint.codec import CODECS, Codec
from tidemark.state.errors import CheckpointError


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind in CODECS for value in VALUES[kind.kind]], ids=lambda it: ""
)
def test_what_is_written_is_read(kind: Codec[object], value: object) -> None:
    data = kind.encode(value)
    assert kind.decode(data, "x") == value
    assert kind.encode(kind.decode(data, "x")) == data


def test_any_changed_or_missing_byte_is_noticed() -> None:
    good = codec.PLAN.encode(SNAPSHOT_PLAN)
    for at in range(len(good)):
        changed = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        for bad in (good[:at], changed):
            with pytest.raises(CheckpointError, match="plans/1"):
                codec.PLAN.decode(bad, "plans/1")


def test_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'plan' where 'job'"):
        codec.JOB.decode(codec.PLAN.encode(SNAPSHOT_PLAN), "job")


@pytest.mark.pitfall(73)
def test_nothing_is_read_from_an_empty_file_or_one_without_a_field() -> None:
    with pytest.raises(CheckpointError):
        codec.PLAN.decode(b"", "plans/1")
    broken = Codec[object]("plan", dict, version=1).encode({"phase": "stream"})
    with pytest.raises(CheckpointError, match="not what version"):
        codec.PLAN.decode(broken, "plans/1")


def with_header(data: bytes, **fields: Any) -> bytes:
    """The file as another Tidemark would have written it. A field that is None is left out."""
    head, body = data.split(b"\n", 1)
    changed = {name: value for name, value in {**json.loads(head), **fields}.items() if value is not None}
    return codec._header(changed, body.removesuffix(b"\n")) + b"\n" + body


@pytest.mark.pitfall(127)
def test_a_newer_version_is_refused_with_the_tidemark_that_can_read_it() -> None:
    newer = with_header(codec.PLAN.encode(SNAPSHOT_PLAN), version=2, product="7.1.0")
    with pytest.raises(CheckpointError) as caught:
        codec.PLAN.decode(newer, "plans/1")
    assert caught.value.message == (
        "plans/1 has version 2 of the format of plan files, written by Tidemark 7.1.0. "
        f"This Tidemark, {__version__}, knows versions up to 1."
    )
    assert caught.value.remedy == "Run the job with Tidemark 7.1.0 or a later one."


@pytest.mark.pitfall(127)
@pytest.mark.parametrize("header", [{"version": 10, "product": None}, {"version": 0}])
def test_an_older_version_that_nothing_upgrades_is_refused(header: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="can't read it") as caught:
        codec.PLAN.decode(with_header(codec.PLAN.encode(SNAPSHOT_PLAN), **header), "plans/1")
    assert caught.value.remedy == (
        "Run the job with the Tidemark version that wrote the checkpoint, or start over with an empty checkpoint and an "
        "empty target."
    )


@pytest.mark.pitfall(127)
def test_a_file_of_an_older_version_is_upgraded_step_by_step() -> None:
    """Upgrades {"rows": n} to {"row_count": n} to {"row_count": n, "bytes": 0}."""
    first: Codec[object] = Codec("chart", dict[str, int], version=1)
    steps = {
        ("chart", 1): lambda value: {"row_count": value["rows"]},
        ("chart", 2): lambda value: {**value, "bytes": 0},
    }
    third: Codec[object] = Codec("chart", dict[str, int], version=3, upgrades=steps)
    assert third.decode(first.encode({"rows": 2**63}), "x") == {"row_count": 2**63, "bytes": 0}
    assert third.decode(third.encode({"row_count": 1, "bytes": 2}), "x") == {"row_count": 1, "bytes": 2}
    lacking: Codec[object] = Codec("chart", dict[str, int], version=3, upgrades={("chart", 2): steps["chart", 2]})
    with pytest.raises(CheckpointError, match="can't read it"):
        lacking.decode(first.encode({"rows": 1}), "x")


@pytest.mark.pitfall(127)
def test_what_another_release_wrote_with_the_same_version_is_read() -> None:
    for kind in CODECS:
        (value, *_) = VALUES[kind.kind]
        assert kind.decode(with_header(kind.encode(value), product="0.0.9"), "x") == value
