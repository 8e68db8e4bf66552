"""Acts at each failpoint that code in this process reaches."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tidemark.state import failpoints


@contextmanager
def each_failpoint(reached: Callable[[str], None]) -> Iterator[None]:
    """Calls `reached` with a failpoint's name, in the thread that reaches it. Modules that are imported meanwhile have none."""
    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            has_one = getattr(module, "failpoint", None) is failpoints.failpoint
            if has_one and name.startswith("tidemark.") and module is not failpoints:
                patch.setattr(module, "failpoint", reached)
        yield
