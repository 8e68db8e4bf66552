"""The output of `make pitfalls`."""

from devtools.pitfalls import PITFALLS
from scripts.pitfalls import MarkedTests, report


def every_entry() -> dict[int, list[str]]:
    return {number: [f"unit/test_{number}"] for number in PITFALLS}


def test_the_list_has_its_entries_in_order() -> None:
    assert list(PITFALLS) == list(range(1, 132))


def test_all_is_well_when_each_entry_has_a_test() -> None:
    lines, wrong = report(every_entry())
    assert wrong == []
    assert lines[-1].endswith("0 have none.")


def test_an_entry_without_a_test_is_named() -> None:
    tests = every_entry()
    del tests[27], tests[49]
    lines, wrong = report(tests)
    assert wrong == ["no test yet: 27, 49"]
    assert sum("NO TEST" in line for line in lines) == 2


def test_a_mark_for_an_entry_that_is_not_there_is_wrong() -> None:
    _, wrong = report(every_entry() | {999: ["unit/test_x"]})
    assert wrong == ["there is no pitfall 999, which unit/test_x names"]


def test_a_test_counts_once_whatever_its_parameters_and_for_all_its_numbers() -> None:
    found = MarkedTests()
    found.add("tests/unit/test_a.py::test_b[1]", [(14, 15)])
    found.add("tests/unit/test_a.py::test_b[2]", [(14,), (14,)])
    assert found.by_number == {14: ["unit/test_a.py::test_b"], 15: ["unit/test_a.py::test_b"]}
