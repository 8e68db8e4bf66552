"""The identity of the copy that a job writes: the sink's settings that must not change between two runs."""

from dataclasses import dataclass

from tidemark.state.errors import CheckpointError
from tidemark.state.remedies import START_OVER


@dataclass(frozen=True, slots=True)
class SinkSetting:
    """A key of the job file and its value. Holds no secret."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class SinkIdentity:
    """Durable before the first row is written, and never changed.

    `settings` must stay the same. `location`, the server or folder, may change if the copy was moved there whole: the
    ownership marks of its tables prove that.
    """

    settings: tuple[SinkSetting, ...]
    location: SinkSetting | None

    def changes(self, now: "SinkIdentity") -> list[str]:
        """Each changed setting as a sentence."""
        before, after = ({s.key: s.value for s in identity.settings} for identity in (self, now))
        keys = dict.fromkeys((*before, *after))
        return [_changed(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)]

    def relocation(self, now: "SinkIdentity") -> str | None:
        """The changed location as a sentence, None if it is the same."""
        if self.location is None or now.location is None or self.location == now.location:
            return None
        return _changed(self.location.key, self.location.value, now.location.value)

    def require_same(self, now: "SinkIdentity") -> None:
        """Raises CheckpointError if a setting has changed: the rows written so far are elsewhere, or in another form."""
        if changes := self.changes(now):
            raise CheckpointError(" ".join(changes), f"{UNDO}, or {START_OVER}.")


UNDO = "Undo the change in the job file"


def _changed(key: str, before: str | None, now: str | None) -> str:
    return f"The job was started with {key}: {before or 'none'}, but now it is {now or 'none'}."
