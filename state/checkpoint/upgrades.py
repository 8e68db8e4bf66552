"""How checkpoint files of older versions are upgraded on reading, one version after the other.

A step belongs to a kind and the version that it starts from. It takes the decoded JSON of that version and returns the
JSON of the next version. It gets a value of its own and may change it. Files are never rewritten: what is read once is
upgraded each time.

When the fields of a kind change (tests/unit/test_checkpoint_formats.py fails until this is done):

1. If a release contains the kind's present version, raise the version in state/checkpoint/codec.py and add a step here.
   Otherwise nobody has such files, and the version stays.
2. Run `python -m scripts.checkpoint_formats`. It writes the golden files and the fields of the present versions to
   tests/golden/checkpoint. Commit them. Golden files of older versions stay for ever: the tests read them.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Upgrade: TypeAlias = Callable[[Any], Any]

UPGRADES: Mapping[tuple[str, int], Upgrade] = {}
"""(kind, version of the file) → the step to the next version. All kinds are in version 1 so far."""
