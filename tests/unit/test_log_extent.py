import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.state.errors import DamagedLogError, LogPositionLostError
from tidemark.state.log_extent import BinlogExtent, LogFile
from tidemark.state.position import BinlogPosition

FILES = [LogFile("b.999998", 1000), LogFile("b.999999", 200), LogFile("b.1000000", 600)]
EXTENT = BinlogExtent(FILES)


def place(file: str, pos: int) -> BinlogPosition:
    return BinlogPosition(file, pos)


def test_the_end_is_that_of_the_last_file() -> None:
    assert EXTENT.end == place("b.1000000", 600)


@pytest.mark.parametrize("files", [[], [FILES[1], FILES[0]], [FILES[0], FILES[0]]])
def test_a_list_that_is_no_log_is_refused(files: list[LogFile]) -> None:
    with pytest.raises(DamagedLogError):
        BinlogExtent(files)


@pytest.mark.pitfall(45)
@pytest.mark.parametrize("lost", [place("b.999997", 4), place("other.999998", 4), place("b.999999", 201)])
def test_a_place_that_the_log_does_not_hold_stops_the_job(lost: BinlogPosition) -> None:
    EXTENT.require(place("b.999999", 200))
    with pytest.raises(LogPositionLostError) as error:
        EXTENT.require(lost)
    assert error.value.exit_code == 4


@pytest.mark.pitfall(44)
def test_a_range_may_cross_files() -> None:
    end = EXTENT.end
    assert EXTENT.stop_after(place("b.999998", 900), 50, limit=end) == place("b.999998", 950)
    assert EXTENT.stop_after(place("b.999998", 900), 150, limit=end) == place("b.999999", 54)
    assert EXTENT.stop_after(place("b.999998", 900), 10**9, limit=end) == end
    assert EXTENT.stop_after(place("b.999998", 900), 10**9, limit=place("b.999999", 7)) == place("b.999999", 7)
    assert EXTENT.bytes_between(place("b.999998", 900), place("b.1000000", 4)) == 304


@given(file=st.integers(0, 2), pos=st.integers(4, 1000), batch=st.integers(1, 3000), limit=st.integers(5, 600))
def test_a_stop_lies_after_its_start_and_not_beyond_the_batch(file: int, pos: int, batch: int, limit: int) -> None:
    start, last = place(FILES[file].name, min(pos, FILES[file].size_bytes)), place("b.1000000", limit)
    if start.order >= last.order:
        return
    stop = EXTENT.stop_after(start, batch, limit=last)
    assert start.order < stop.order <= last.order
    assert EXTENT.bytes_between(start, stop) <= batch + 2 * 4  # a file's first four bytes are not read
