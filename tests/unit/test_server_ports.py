"""Ports of the tests' servers."""

import pytest

from devtools import server_process
from devtools.server_process import ReservedPort


def test_a_port_is_given_once_while_its_server_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "free_port", iter([15001, 15001, 15002, 15001]).__next__)
    first, second = ReservedPort(), ReservedPort()
    assert (first.number, second.number) == (15001, 15002)
    first.close()
    third = ReservedPort()
    assert third.number == 15001
    second.close()
    third.close()
