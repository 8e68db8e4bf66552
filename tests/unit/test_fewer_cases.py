"""The file of tests of which `make test` runs some cases only."""

import ast
from pathlib import Path

import pytest

from devtools.fewer_cases import FILE, cases_left_out, numbers_of_cases
from scripts.fewer_cases import HEAD, seconds_of_cases, written

ROOT = Path(__file__).parents[2]


def test_each_test_in_the_file_exists() -> None:
    for test in numbers_of_cases(FILE.read_text()):
        file, _, function = test.partition("::")
        module = ast.parse(Path(ROOT, file).read_text())
        names = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        assert function in names, f"{test} is gone: take its line out of tests/fewer_cases.txt"


def test_a_test_keeps_the_cases_that_take_the_seconds_together_and_one_at_least(tmp_path: Path) -> None:
    cases = [("a", "2"), ("a", "2"), ("a", "2"), ("long", "9"), ("long", "9"), ("short", "0.1"), ("short", "0.1")]
    xml = "".join(
        f'<testcase classname="tests.unit.test_x" name="test_{name}[{number}]" time="{time}"/>'
        for number, (name, time) in enumerate(cases)
    )
    skipped = '<testcase classname="tests.unit.test_x" name="test_a[x]" time="99"><skipped/></testcase>'
    junit = tmp_path / "junit.xml"
    junit.write_text(f"<testsuite>{xml}{skipped}</testsuite>")
    text = written(seconds_of_cases(junit), 4)
    assert text == f"{HEAD}tests/unit/test_x.py::test_a 2\ntests/unit/test_x.py::test_long 1\n"
    assert numbers_of_cases(text) == {"tests/unit/test_x.py::test_a": 2, "tests/unit/test_x.py::test_long": 1}


@pytest.mark.parametrize(
    "line", ["tests/unit/test_x.py::test_a", "tests/unit/test_x.py::test_a 0", "test_a 3", "tests/a.py::test_b 1\n" * 2]
)
def test_a_line_that_says_nothing_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="not a test and its number of cases"):
        numbers_of_cases(line)


def test_the_same_cases_are_left_out_each_time_and_no_other_tests() -> None:
    cases = [f"tests/a.py::test_a[{number}]" for number in range(9)]
    others = ["tests/a.py::test_ab[1]", "tests/a.py::test_b", "tests/b.py::test_a[1]"]
    left_out = cases_left_out(cases + others, {"tests/a.py::test_a": 4})
    assert len(left_out) == 5
    assert left_out < set(cases)
    assert cases_left_out(others + cases[::-1], {"tests/a.py::test_a": 4}) == left_out
