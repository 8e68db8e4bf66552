"""Numbers inside JSON documents that a MySQL copy would round are found."""

import pyarrow as pa
import pytest

from tidemark.sinks.mirror.mysql.rows import check_json_numbers


@pytest.mark.parametrize(
    "document",
    [
        '{"a": 12345678901234567890.123}',
        "[0.12345678901234567891]",
        "18446744073709551617",
        '{"deep": [1, {"x": -99999999999999999999}]}',
    ],
)
def test_numbers_with_more_digits_than_a_double_are_refused(document: str) -> None:
    with pytest.raises(ValueError, match="more digits than a double"):
        check_json_numbers(pa.array(["1", None, document]))


@pytest.mark.parametrize(
    "document",
    [
        "18446744073709551615",
        "-9223372036854775808",
        "0.30000000000000004",
        "1.7976931348623157e308",
        "1.100000000000000000",
        '"12345678901234567890.123"',
        "100000000000000000000",
    ],
)
def test_numbers_that_survive_pass(document: str) -> None:
    check_json_numbers(pa.array([document]))
