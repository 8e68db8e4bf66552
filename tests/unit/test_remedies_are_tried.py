"""Each remedy that the code can print was done by a test, or is listed as one that was not, with the reason."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.printed_texts import ROOT
from tests.support.remedies_of_source import remedies

LIST = Path(__file__).with_name("remedies.txt")
NOT_TRIED = "not tried: "


def sections() -> list[tuple[str, list[str]]]:
    """The headings of the list, and the remedies below each."""
    found: list[tuple[str, list[str]]] = []
    for line in LIST.read_text().splitlines():
        if (heading := re.fullmatch(r"\[(.*)\]", line)) is not None:
            found.append((heading[1], []))
        elif line and not line.startswith("#"):
            found[-1][1].append(line)
    return found


def test_each_remedy_is_in_the_list() -> None:
    """With the test that does what it says. A remedy whose words change counts as new."""
    listed = {text for _, texts in sections() for text in texts}
    new = sorted(f"{text} ({remedy.place})" for remedy in remedies() if (text := remedy.text) not in listed)
    assert new == [], "name the test that does it (CONTRIBUTING.md, Remedies)"


def test_the_list_has_each_remedy_once_and_none_that_is_gone() -> None:
    listed = Counter(text for _, texts in sections() for text in texts)
    assert [text for text, count in listed.items() if count > 1] == []
    assert sorted(set(listed) - {remedy.text for remedy in remedies()}) == []


@pytest.mark.parametrize("heading", [heading for heading, _ in sections() if not heading.startswith(NOT_TRIED)])
def test_the_test_of_a_remedy_exists(heading: str) -> None:
    path, _, name = heading.partition("::")
    assert f"\ndef {name}(" in (ROOT / "tests" / path).read_text()


def test_the_source_is_searched_for_remedies() -> None:
    """Has one of each kind: an error, a finding of a source and of a sink, a dictionary, a constant of another module."""
    found = {remedy.place: remedy.text for remedy in remedies()}
    assert len(found) > 200
    assert "readers/postgres/connect.py:prepare_session" in found
    assert "readers/mysql/schema/server_checks.py:check_settings" in found
    assert "sinks/mirror/planning.py:table_findings" in found
    assert "sinks/mirror/mysql/errors.py:_REMEDIES" in found
    assert any("start over with an empty checkpoint" in text for text in found.values())
