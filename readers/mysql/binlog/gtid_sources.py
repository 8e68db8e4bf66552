"""The sources of GTIDs (MySQL: servers and tags; MariaDB: domains and servers), and the transactions to skip."""

import uuid

import numpy as np

from tidemark.readers.mysql.binlog import arrays as w
from tidemark.readers.mysql.binlog.arrays import Sources
from tidemark.state.gtid import GtidSet, Interval, Source


class LogSources:
    """`arrays` are for the compiled loop. `sources` and `texts` (a GTID's text before its number) have one entry per source."""

    def __init__(self, skip: GtidSet | None) -> None:
        self.sources: list[Source] = []
        self.texts: list[str] = []
        self._skip = GtidSet() if skip is None else skip
        self._ids: list[bytes] = []
        self._kinds: list[int] = []
        self.arrays = self._arrays()

    @property
    def count(self) -> int:
        return len(self.sources)

    def server(self, id_bytes: bytes, tag: str = "") -> int:
        """The index of a MySQL server with this tag ("": none). Adds it if it is new."""
        source = (str(uuid.UUID(bytes=id_bytes)), tag)
        text = f"{source[0]}:{tag}:" if tag else f"{source[0]}:"
        return self._add(source, text, id_bytes, w.TAGGED if tag else w.UNTAGGED)

    def domain(self, domain: int, server: int) -> int:
        """The index of a server in a MariaDB domain. Adds it if it is new."""
        text = f"{domain}-{server}"
        id_bytes = domain.to_bytes(4, "little") + server.to_bytes(4, "little") + bytes(8)
        return self._add((text, ""), f"{text}-", id_bytes, w.DOMAIN)

    def skips(self, number: int, transaction: int) -> bool:
        return self._skip.contains(self.sources[number], transaction)

    def _add(self, source: Source, text: str, id_bytes: bytes, kind: int) -> int:
        if source in self.sources:
            return self.sources.index(source)
        self.sources.append(source)
        self.texts.append(text)
        self._ids.append(id_bytes)
        self._kinds.append(kind)
        self.arrays = self._arrays()
        return len(self.sources) - 1

    def _arrays(self) -> Sources:
        wanted: list[tuple[Interval, ...]] = [self._skip.intervals.get(source, ()) for source in self.sources]
        flat = [interval for intervals in wanted for interval in intervals]
        return Sources(
            np.frombuffer(bytearray(b"".join(self._ids) or bytes(16)), np.uint8).reshape(-1, 16),
            np.array(self._kinds or [-1], np.int32),
            np.cumsum([0, *map(len, wanted)], dtype=np.int64),
            np.array([start for start, _ in flat] or [0], np.int64),
            np.array([after for _, after in flat] or [0], np.int64),
        )


def overlap(one: GtidSet, other: GtidSet) -> bool:
    """True if the sets have a transaction in common."""
    for source, intervals in other.intervals.items():
        mine = one.intervals.get(source, ())
        if any(start < after and first < end for start, end in intervals for first, after in mine):
            return True
    return False
