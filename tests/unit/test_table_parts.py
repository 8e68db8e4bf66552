"""The values that `--keys` and `--where` of `tidemark signal` accept."""

import pytest

from tidemark.conf.condition import check_given_condition
from tidemark.jobs.signals.table_parts import PartRefusedError, parse_keys


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("5", (("5",),)),
        ("-5..-1", (("-5",), ("-1",))),
        ("1.5 .. 2.5", (("1.5",), ("2.5",))),
        ("5,2..7,1", (("5", "2"), ("7", "1"))),
        ("2024-01-01 10:00:00", (("2024-01-01 10:00:00",),)),
        ('"a,b..c","say ""x"""', (("a,b..c", 'say "x"'),)),
        ('""', (("",),)),
    ],
)
def test_keys_are_parsed(text: str, keys: tuple[tuple[str, ...], ...]) -> None:
    assert parse_keys(text) == keys


@pytest.mark.parametrize("text", ["", "5,", "..5", "5..", "1..2..3", 'a"b', '"a', '"a"b', "5,,6"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(PartRefusedError):
        parse_keys(text)


@pytest.mark.parametrize(
    "text",
    [
        r"note = '\' ) ; DROP TABLE orders; --'",  # PostgreSQL ends the string at the second quote
        "$$ ' $$ ) ; DROP TABLE orders; -- $$ ' $$",
        "$a$ ' $a$ ) ; DROP TABLE orders; -- $a$ ' $a$",
        "1 ` ) ; DROP TABLE orders; -- `",
        r"note = U&'\0027'",
        "note = 'a\0b'",
        "id = 5; SELECT 1",
        "id = 5 -- and",
        "id = 5) OR (id = 6",
    ],
)
def test_no_second_statement_gets_in(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|has"):
        check_given_condition(text, backticks_quote=False)


@pytest.mark.parametrize("text", ["id = 5", "note LIKE '%$5; --%' AND \"at\" > '2024-01-01'", "`id` IN (1, 2)"])
def test_conditions_are_taken(text: str) -> None:
    assert check_given_condition(text, backticks_quote=True) == text
