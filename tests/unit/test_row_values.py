"""Servers' messages without the values of rows that they quote."""

import pytest

from tidemark.conf.row_values import without_mysql_values, without_postgres_values

pytestmark = pytest.mark.pitfall(126)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("Duplicate entry 'ann's@shop' for key 't.PRIMARY'", "Duplicate entry '…' for key 't.PRIMARY'"),
        (
            "Incorrect string value: '\\xF0\\x9F' for column `s`.`t`.`c` at row 1",
            "Incorrect string value: '…' for column `s`.`t`.`c` at row 1",
        ),
        (
            "Incorrect datetime value: 'ann' for function str_to_date",
            "Incorrect datetime value: '…' for function str_to_date",
        ),
        ("Truncated incorrect DOUBLE value: 'an\n'n'", "Truncated incorrect DOUBLE value: '…'"),
        ("BIGINT value is out of range in '(77 * 5)'", "BIGINT value is out of range in '…'"),
        ("Table has no partition for value 7355", "Table has no partition for value '…'"),
        ("Data too long for column 'c' at row 1", "Data too long for column 'c' at row 1"),
        ("Unknown column 'c' in 'where clause'", "Unknown column 'c' in 'where clause'"),
    ],
)
def test_mysql_and_mariadb(told: str, shown: str) -> None:
    assert without_mysql_values(told) == shown


@pytest.mark.parametrize(
    ("code", "told", "shown"),
    [
        ("22P02", 'invalid input syntax for type integer: "an"n"', "invalid input syntax for type integer: …"),
        ("22003", 'value "77777777777" is out of range for type integer', "value … is out of range for type integer"),
        ("22008", 'date/time field value out of range: "2024-13-01"', "date/time field value out of range: …"),
        ("22021", 'invalid byte sequence for encoding "UTF8": 0x61 0xff', "invalid byte sequence for encoding …"),
        (
            "23505",
            'duplicate key value violates unique constraint "k"',
            'duplicate key value violates unique constraint "k"',
        ),
        ("42P01", 'relation "t" does not exist', 'relation "t" does not exist'),
        (None, 'database "x" does not exist', 'database "x" does not exist'),
    ],
)
def test_postgresql(code: str | None, told: str, shown: str) -> None:
    assert without_postgres_values(code, told) == shown
