"""The newest anchor that this process knows: a place in the log with exactly the GTIDs that the log holds up to it.

Every split's high is one. The later the anchor that a split starts from, the less log has to be read to complete it.
"""

import threading
from typing import TypeAlias

from readers.mysql.server import ServerIdentity
from state.position import BinlogPosition

Scope: TypeAlias = tuple[str, ServerIdentity]
"""The job's uuid and the server. A job that is started anew, as after RESET, must not get the old one's anchors."""

_KEPT_SCOPES = 64

_newest: dict[Scope, BinlogPosition] = {}
_guard = threading.Lock()


def newest_anchor(scope: Scope, given: BinlogPosition) -> BinlogPosition:
    """`given`, or a later one that was remembered."""
    with _guard:
        known = _newest.get(scope)
    return given if known is None or known.order <= given.order else known


def remember_anchor(scope: Scope, position: BinlogPosition) -> None:
    """Nothing happens for a position without GTIDs, or an older one."""
    if position.gtids is None:
        return
    with _guard:
        known = _newest.pop(scope, None)
        _newest[scope] = position if known is None or known.order < position.order else known
        while len(_newest) > _KEPT_SCOPES:
            del _newest[next(iter(_newest))]
