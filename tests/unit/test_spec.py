"""The reading of TLC's output by `make spec`, and the configuration that it gives TLC."""

import pytest

from scripts.spec import SPEC, Result, SpecError, configuration, never_taken, read_result
from scripts.spec_checks import CHECKS, Check

HOLDS = """\
Model checking completed. No error has been found.
  Estimates of the probability that TLC did not check all reachable states
<Write line 79, col 1 to line 79, col 5 of module Lanes>: 9646:28462
  line 79, col 13 to line 79, col 30 of module Lanes: 28462
<Truncate line 83, col 1 to line 83, col 8 of module Lanes>: 0:0
<NothingLost line 123, col 1 to line 123, col 11 of module Lanes>
161842 states generated, 61407 distinct states found, 0 states left on queue.
"""
VIOLATED = """\
Error: Invariant NothingLost is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
23,686 states generated, 8,967 distinct states found, 2,992 states left on queue.
"""


def test_no_error_is_read_with_states_and_actions() -> None:
    assert read_result(HOLDS) == Result("holds", 61407, {"Write": 28462, "Truncate": 0})


def test_a_violated_invariant_is_read_by_its_name() -> None:
    result = read_result(VIOLATED)
    assert (result.outcome, result.distinct_states) == ("violates NothingLost", 8967)


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("Error: Temporal properties were violated.\n", "violates a property"),
        ("Error: Deadlock reached.\n", "deadlock"),
        ("Error: TLC threw an unexpected exception.\n", "fails"),
        ("Could not reserve enough space for object heap\n", "fails"),
        ("", "fails"),
    ],
)
def test_whatever_else_tlc_says_is_no_success(output: str, outcome: str) -> None:
    assert read_result(output).outcome == outcome


def test_an_action_counts_as_taken_if_one_check_of_its_module_took_it() -> None:
    one, other = Check("Lanes", "one"), Check("Lanes", "other")
    rare, never = Result("holds", 1, {"Write": 3, "Join": 0, "Add": 0}), Result("holds", 1, {"Join": 1, "Add": 0})
    assert never_taken([(one, rare), (other, never)]) == {"Lanes": ["Add"]}


def test_constants_and_invariants_of_a_check_replace_those_of_the_file() -> None:
    text = "CONSTANTS\n  MaxTx = 2\n  TableOf <- OneTable\nSYMMETRY Alike\nINVARIANT A\nINVARIANT B\n"
    check = Check("Lanes", "only A", violates="A", alone=True, symmetric=False)
    written = configuration(text, check, {"MaxTx": "3", "TableOf": "<- TwoTables"})
    assert written == "CONSTANTS\n  MaxTx = 3\n  TableOf <- TwoTables\nINVARIANT A\n"


def test_liveness_is_checked_without_symmetry_and_alone() -> None:
    text = "SYMMETRY Alike\nINVARIANT A\n"
    assert configuration(text, Check("Lanes", "ends", properties=("Ends",)), {}) == "PROPERTY Ends\n"


def test_a_constant_that_the_file_lacks_is_refused() -> None:
    with pytest.raises(SpecError, match="MaxTxs"):
        configuration("  MaxTx = 2\n", Check("Lanes", "typo"), {"MaxTxs": "3"})


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: f"{check.module}: {check.name}")
def test_each_check_fits_its_module(check: Check) -> None:
    text = (SPEC / f"{check.module}.cfg").read_text()
    configuration(text, check, {**check.constants, **check.large})
    module = (SPEC / f"{check.module}.tla").read_text()
    for name in (*check.invariants, *check.properties, *([check.violates] if check.violates else [])):
        assert f"\n{name} ==" in module
