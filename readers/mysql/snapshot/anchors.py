"""The newest anchor of this process: with GTIDs, a log position with exactly the GTIDs of the log before it. Without GTIDs, a
position up to which all XA COMMITs are visible.

Every split's high is an anchor. A split that starts from a later anchor reads less log.
"""

import threading
from typing import TypeAlias

from tidemark.readers.mysql.server import ServerIdentity
from tidemark.state.position import BinlogPosition

Scope: TypeAlias = tuple[str, int, ServerIdentity]
"""The job's uuid, how many times it has continued in another log, and the server. A job that started over, for example
after a RESET, must not get the old anchors."""

_KEPT_SCOPES = 64

_newest: dict[Scope, BinlogPosition] = {}
_guard = threading.Lock()


def newest_anchor(scope: Scope, given: BinlogPosition) -> BinlogPosition:
    """The later one of `given` and the remembered anchor."""
    with _guard:
        known = _newest.get(scope)
    return given if known is None or known.order <= given.order else known


def remember_anchor(scope: Scope, position: BinlogPosition) -> None:
    """Remembers the position as an anchor, unless a later one is known."""
    with _guard:
        known = _newest.pop(scope, None)
        _newest[scope] = position if known is None or known.order < position.order else known
        while len(_newest) > _KEPT_SCOPES:
            del _newest[next(iter(_newest))]
