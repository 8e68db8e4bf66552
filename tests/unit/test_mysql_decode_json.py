"""Binary JSON as MySQL 9.7 logged it, and the text that it showed for the same value."""

import json
from pathlib import Path

import pytest

from tidemark.readers.mysql.decoding.jsonb import json_text

DOCUMENTS = json.loads(Path(__file__).with_name("mysql_json_documents.json").read_text())


@pytest.mark.pitfall(37)
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["shown"][:20])
def test_logged_documents_print_as_the_server_shows_them(document: dict[str, str]) -> None:
    assert json_text(bytes.fromhex(document["logged"])) == document["shown"]


def test_an_empty_value_is_null() -> None:
    """ALTER TABLE and INSERT IGNORE leave an empty value in a NOT NULL column."""
    assert json_text(b"") == "null"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("04 03", "literal 3"),
        ("0d 00", "type 13"),
        ("0b 000000000000f07f", "not a number"),
        ("0c 05 6162", "cut short"),
        ("0c ffffffffff01 61", "more than five bytes"),
        ("00 0100 0400", "more entries than room"),
        ("0f f6 03 0402 81", "a decimal of another length"),
        ("0f f6 04 0402 ff05", "a decimal of more digits"),
    ],
)
def test_damage_is_named(content: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        json_text(bytes.fromhex(content.replace(" ", "")))
