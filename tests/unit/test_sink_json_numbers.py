"""Numbers inside JSON documents that a MySQL copy would round are found."""

import pyarrow as pa
import pytest

from tidemark.sinks.mirror.bad_values import BadValueMask
from tidemark.sinks.mirror.mysql.bad_values import bad_values
from tidemark.sinks.mirror.value_ranges import FormattedText


def bad_documents(*documents: str | None) -> BadValueMask | None:
    return bad_values(pa.array(documents), FormattedText("json"), parses_json=True, timestamps=(0, 0), marked=False)


@pytest.mark.parametrize(
    "document",
    [
        '{"a": 12345678901234567890.123}',
        "[0.12345678901234567891]",
        "18446744073709551617",
        '{"deep": [1, {"x": -99999999999999999999}]}',
        "[1e400]",
        '{"a": -1E-400}',
    ],
)
def test_numbers_with_more_digits_than_a_double_are_found(document: str) -> None:
    found = bad_documents("1", None, document)
    assert found is not None
    assert found.rows.tolist() == [False, False, True]


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
        "1e-300",
        "2E+100",
    ],
)
def test_numbers_that_survive_pass(document: str) -> None:
    assert bad_documents(document) is None
