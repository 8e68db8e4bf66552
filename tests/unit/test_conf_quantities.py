import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.conf.quantities import (
    BYTES_PER_UNIT,
    Every,
    Once,
    format_size_bytes,
    parse_size_bytes,
    parse_trigger,
)


@pytest.mark.parametrize(
    ("written", "size_bytes"),
    [("64MiB", 67_108_864), ("1GB", 10**9), ("1.5 GiB", 1_610_612_736), ("0.5KB", 500), (1048576, 1048576), ("7", 7)],
)
def test_sizes_are_bytes_by_their_unit(written: str | int, size_bytes: int) -> None:
    assert parse_size_bytes(written) == size_bytes


@given(st.integers(1, 2**60))
def test_a_formatted_size_reads_back(size_bytes: int) -> None:
    assert parse_size_bytes(format_size_bytes(size_bytes)) == size_bytes


@given(st.integers(1, 10**6), st.sampled_from(sorted(BYTES_PER_UNIT)), st.sampled_from(["", " "]))
def test_whole_sizes_are_exact(number: int, unit: str, space: str) -> None:
    assert parse_size_bytes(f"{number}{space}{unit}") == number * BYTES_PER_UNIT[unit]


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_size_bytes(text) >= 1


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("64M", "'M' is not a unit. Did you mean 'MiB'? Units: B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"),
        ("64mib", "'mib' is not a unit. Did you mean 'MiB'?"),
        ("0", "must be a whole number of bytes, at least 1"),
        ("0.3B", "must be a whole number of bytes, at least 1"),
        ("-1MiB", "must be a size like 64MiB or 1.5GB, or a number of bytes"),
        (True, "must be a size like 64MiB"),
        (None, "must be a size like 64MiB"),
        ("\u0661MiB", "must be a size like 64MiB"),
    ],
)
def test_wrong_sizes_are_refused(written: str, reason: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        parse_size_bytes(written)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("written", "trigger"),
    [
        ("once", Once()),
        ("1s", Every(1)),
        ("30s", Every(30)),
        ("5m", Every(300)),
        ("1h", Every(3600)),
        ("250ms", Every(0.25)),
    ],
)
def test_triggers_are_once_or_seconds(written: str, trigger: Once | Every) -> None:
    assert parse_trigger(written) == trigger
    assert str(trigger) == written


@given(st.integers(1, 10**10))
def test_a_written_interval_reads_back(milliseconds: int) -> None:
    trigger = parse_trigger(f"{milliseconds}ms")
    assert parse_trigger(str(trigger)) == trigger


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("30", "Units: ms, s, m, h"),
        (30, "Write the unit: 30s"),
        ("0s", "must be a whole number of milliseconds, at least 1"),
        ("0.5ms", "must be a whole number of milliseconds, at least 1"),
        ("1d", "'d' is not a unit. Units: ms, s, m, h"),
        ("5M", "'M' is not a unit. Did you mean 'm'?"),
        ("twice", "must be once, or an interval like 1s, 30s, 5m, 1h"),
        (True, "must be once, or an interval"),
    ],
)
def test_wrong_triggers_are_refused(written: str, reason: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        parse_trigger(written)
    assert reason in str(caught.value)
