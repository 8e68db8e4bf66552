"""The log's order decides, whatever its timestamps say."""

import contextlib

import pytest

from tests.support.log_reading import LoggedServer, changes_of, logged
from tidemark.state.log_range import LogRange

__all__ = ["logged"]
pytestmark = pytest.mark.integration


@pytest.mark.pitfall(5)
def test_a_range_ends_at_its_place_though_times_run_backwards(logged: LoggedServer) -> None:
    logged.execute("DROP TABLE IF EXISTS t", "CREATE TABLE t (id INT PRIMARY KEY)")
    boundaries = [logged.anchor()]
    with contextlib.closing(logged.connect()) as connection, connection.cursor() as cursor:
        for number in range(1, 6):
            cursor.execute(f"SET timestamp = {1_700_000_000 - number * 3600}")
            if logged.is_mariadb:
                cursor.execute(f"SET server_id = {50 - number}")
            cursor.execute("INSERT INTO t VALUES (%s)", (number,))
            if number == 3:
                cursor.execute("FLUSH BINARY LOGS")
            boundaries.append(logged.anchor())
    for first in range(5):
        for last in range(first, 6):
            end = boundaries[last]
            changes = changes_of(logged.reader("t"), LogRange(boundaries[first], end))
            assert [change["id"] for change in changes] == list(range(first + 1, last + 1))
