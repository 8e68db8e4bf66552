"""YAML in a job file: what is allowed and what is not."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.yaml_tree import (
    MAX_NESTING,
    MAX_NODES,
    Plain,
    Scalar,
    map_scalars,
    node_at,
    place_of_path,
    read_tree,
    to_plain,
    typed,
)
from tidemark.conf.yaml_tree import Place as YamlPlace


def place(line: int) -> YamlPlace:
    return YamlPlace("job.yaml", line)


def plain(text: str) -> Plain:
    return to_plain(read_tree(text, place), text_at=lambda path: path[:1] == ("texts",))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("Yes", "Yes"),
        ("y", "y"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("5400-5499", "5400-5499"),
        ("12:30:00", "12:30:00"),
        ("2024-01-31", "2024-01-31"),
        ("007", "007"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("=", "="),
        ("42", 42),
        ("-7", -7),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ('"42"', "42"),
        ("'true'", "true"),
        ("|-\n  42", "42"),
        ("\u0664", "\u0664"),
    ],
)
def test_plain_values_are_typed_by_the_core_schema(written: str, value: object) -> None:
    result = plain(f"key: {written}")
    assert result == {"key": value}
    assert type(result["key"]) is type(value)


def test_keys_are_text_and_some_places_keep_the_text_of_values() -> None:
    assert plain("{true: 1, 5: 2, null: 3, texts: {a: 1.10, b: true, c: }}") == {
        "true": 1,
        "5": 2,
        "null": 3,
        "texts": {"a": "1.10", "b": "true", "c": None},
    }


@given(
    st.dictionaries(st.text("abc", min_size=1), st.lists(st.integers() | st.booleans() | st.text("ab:# ")), max_size=4)
)
def test_json_reads_as_what_it_says(value: dict[str, list[int | bool | str]]) -> None:
    assert plain(json.dumps(value)) == value


def test_every_key_and_value_knows_its_line() -> None:
    root = read_tree("a:\n  b: 1\n  c:\n    - x\n    - y\nd: {e: 1}\n", place)
    assert place_of_path(root, ("a", "b")) == place(2)
    assert place_of_path(root, ("a", "c")) == place(3)
    assert place_of_path(root, ("a", "c", 1)) == place(5)
    assert place_of_path(root, ("d", "missing")) == place(6)
    assert place_of_path(root, ("missing",)) == place(1)
    assert node_at(root, ("a", "c", 2)) is None
    assert node_at(root, ("a", "b", "x")) is None


def test_scalars_are_replaced_in_place() -> None:
    root = read_tree("a: [x, {b: y}]", place)
    changed = map_scalars(root, lambda path, old: Scalar(f"{path[-1]}{old.text}", plain=False, place=old.place))
    assert to_plain(changed, text_at=lambda _path: False) == {"a": ["0x", {"b": "by"}]}


def test_long_numbers_stay_text() -> None:
    assert typed(Scalar("9" * 41, plain=True, place=place(1))) == "9" * 41


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("job: a\nmode: full\njob: b\n", 3, "has the key 'job' twice. The first one is at job.yaml:1"),
        ("job: !!python/name:os.system x\n", 1, "has a YAML tag like !!python/name:os.system, which is not allowed"),
        ("job: !!int '5'\n", 1, "has a YAML tag like !!int, which is not allowed"),
        ("job: a\nsource: !!omap [a: b]\n", 2, "has a YAML tag like !!omap, which is not allowed"),
        ("!!str job: a\n!x b: c\n", 2, "has a YAML tag like !x, which is not allowed"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", 3, "has a merge key (<<), which is not supported; write the keys out"),
        ("a: &x [*x]\n", 1, "has an alias (*) of a value within itself"),
        ("{a: 1}: b\n", 1, "has a list or mapping as a key; a key must be text (text with braces must be in quotes)"),
        ("job: a\n---\njob: b\n", 2, "has more than one YAML document (---). A job file is one document"),
        ("job: a\n\tmode: full\n", 2, "Indent YAML with spaces. Text that starts with"),
        ("tables: *.orders\n", 1, "Text that starts with '*' or '&' must be in quotes"),
        ("table: {schema}_{table}\n", 1, "Text with braces, brackets, a comma or ': ' must be in quotes"),
        ("job: a\nwhere: a: b\n", 2, "Text with braces, brackets, a comma or ': ' must be in quotes"),
        ("job: [a\n", 2, "is not readable as YAML: while parsing a flow sequence"),
        ("job: a\nx: \x01\n", 2, "is not readable as YAML: special characters are not allowed"),
        ("- a\n", 1, "must be a mapping with keys like job, source, sink"),
        ("text", 1, "must be a mapping with keys like job, source, sink"),
    ],
)
def test_what_a_job_file_may_not_hold_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    problem = problems_of(tmp_path, text)[0]
    assert problem.startswith(f"job.yaml:{line}: ")
    assert reason in problem


def bomb(levels: int) -> str:
    """A document with nine aliases of the level below on each level: 9 ** levels values from a few hundred bytes."""
    lines = ["l0: &l0 x"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, levels + 1)]
    return "\n".join(lines) + "\n"


@pytest.mark.pitfall(125)
def test_aliases_that_multiply_are_refused(tmp_path: Path) -> None:
    began = time.process_time()
    (problem,) = problems_of(tmp_path, bomb(9))
    assert problem.startswith("job.yaml:")
    assert f"has more than {MAX_NODES} keys and values, counting what aliases (*) repeat" in problem
    assert time.process_time() - began < 20


@pytest.mark.pitfall(125)
@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "{b: " * 50_000,
        "".join(f"{' ' * n}a:\n" for n in range(1000)),
        "- " * 50_000 + "x",
    ],
)
def test_deep_nesting_is_refused(tmp_path: Path, text: str) -> None:
    (problem,) = problems_of(tmp_path, text)
    assert f"is nested more than {MAX_NESTING} levels deep" in problem
    (problem,) = problems_of(tmp_path, SMALL, "source.tables=" + "[" * 10_000)
    assert problem == f"--set source.tables: the value is nested more than {MAX_NESTING} levels deep"


@pytest.mark.pitfall(125)
def test_a_deep_path_is_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, SMALL, "a." * 10_000 + "b=1")
    assert problem.startswith("--set a.a.a")
    assert f"has more than {MAX_NESTING} keys" in problem
    assert len(problem) < 400


def test_the_largest_job_file_that_is_plausible_is_read(tmp_path: Path) -> None:
    tables = ", ".join(f"shop.t{n}" for n in range(20_000))
    assert len(load_text(tmp_path, SMALL.replace('"shop.*"', tables)).source.tables) == 20_000


def test_an_alias_may_repeat_a_value(tmp_path: Path) -> None:
    text = SMALL.replace("job: shop", "job: &name shop").replace("/out", "*name")
    assert problems_of(tmp_path, text, "mode=x")[0].startswith("--set mode: must be")
