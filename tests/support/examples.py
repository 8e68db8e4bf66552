"""How many examples a property test tries that needs seconds for them."""

import os

SHORT_ROUNDS = 2


def chaos_rounds() -> int:
    """The number of rounds of a chaos test: few in `make test`, N in `make chaos N=…`."""
    return int(os.environ.get("TIDEMARK_CHAOS_ROUNDS", str(SHORT_ROUNDS)))


def examples(usual: int, many: int) -> int:
    """Returns `usual` in `make test`, `many` in `make chaos`."""
    return many if chaos_rounds() > SHORT_ROUNDS else usual
