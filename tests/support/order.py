"""The order of tests: those that share a Spark session come first in a worker's share, so that one worker runs them all, in
one session. pytest-xdist gives each worker an equal share of the list, and idle workers take tests from the ends of others'."""

from pathlib import Path

import pytest

SESSIONS = ("delta_session", "spark")
"""Fixtures that start Spark. A file with a test that uses one is run by the worker that runs the other files with it."""


@pytest.hookimpl(trylast=True)  # after the order by fixtures
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    groups: list[list[pytest.Item]] = [[] for _ in SESSIONS]
    others: list[pytest.Item] = []
    group_of = _groups(items)
    for item in items:
        number = _number(item, group_of)
        (others if number is None else groups[number]).append(item)
    items[:] = _shared_out(groups, others, workers)


def _groups(items: list[pytest.Item]) -> dict[Path, int]:
    """Returns the number of the session that each file uses."""
    found: dict[Path, int] = {}
    for item in items:
        for number, fixture in enumerate(SESSIONS):
            if fixture in getattr(item, "fixturenames", ()):
                found[item.path] = min(number, found.get(item.path, number))
    return found


def _number(item: pytest.Item, group_of: dict[Path, int]) -> int | None:
    """Returns the number of the session that the item's file uses, or the item itself by its parameters."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if any(isinstance(value, str) and value == "delta" for value in parameters.values()):
        return SESSIONS.index("delta_session")
    return group_of.get(item.path)


def _shared_out(groups: list[list[pytest.Item]], others: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Returns all items, with one group at the beginning of each worker's share."""
    left = sum(map(len, groups)) + len(others)
    ordered: list[pytest.Item] = []
    for worker in range(workers):
        share = [item for group in groups[worker::workers] for item in group]
        size = left // (workers - worker)  # as pytest-xdist divides the list
        count = max(0, size - len(share))
        ordered += [*share, *others[:count]]
        others = others[count:]
        left -= len(share) + count
    return ordered + others
