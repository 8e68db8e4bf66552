"""Counts the connections that are tried."""

from types import ModuleType
from typing import Any

import pytest

from tidemark.conf import reconnect as reconnecting


def counted_connects(driver: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Returns a list that gets an entry for each call of `driver.connect`. There is no waiting between them."""
    made: list[float] = []
    real = driver.connect

    def counted(**settings: Any) -> Any:
        made.append(0.0)
        return real(**settings)

    monkeypatch.setattr(reconnecting, "FIRST_DELAY_SECONDS", 0.0)
    monkeypatch.setattr(driver, "connect", counted)
    return made
