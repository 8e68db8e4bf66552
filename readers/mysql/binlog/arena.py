"""The flat buffer that the log is decoded from: bytes received from the socket, followed by decompressed bytes.

- [0, received): packets from the socket. Their area ends at `room`.
- [room, unpacked): decompressed events. Their area ends where the buffer ends.
"""

from itertools import pairwise

import numpy as np

from tidemark.readers.mysql.binlog.arrays import JOINED
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.kernel import Bytes

RECEIVE_BYTES = 16 << 20
UNPACK_BYTES = 16 << 20
MAX_BYTES = 3 << 30
"""A row can have 1 GiB (max_allowed_packet); an update has two."""

_WIDE = 0xFFFFFF


class Arena:
    def __init__(self, receive_bytes: int = RECEIVE_BYTES, unpack_bytes: int = UNPACK_BYTES) -> None:
        self.buf: Bytes = np.empty(receive_bytes, np.uint8)
        self.room = receive_bytes
        self.received = 0
        self.unpacked = receive_bytes
        self._receive_bytes = receive_bytes
        self._unpack_bytes = unpack_bytes

    @property
    def free(self) -> memoryview:
        """The part of the buffer that takes the next bytes from the socket."""
        return self.buf.data[self.received : self.room]

    @property
    def unpack_room(self) -> int:
        """How many more bytes can be decompressed into the buffer."""
        return max(len(self.buf) - self.unpacked, 0) if len(self.buf) > self.room else self._unpack_bytes

    def unpack_into(self, size: int) -> memoryview:
        """Reserves `size` bytes after the decompressed ones and advances `unpacked`. Returns the reserved part."""
        if len(self.buf) == self.room:
            self._resize(self.room, self._unpack_bytes)
        start = self.unpacked
        if start + size > len(self.buf):
            raise ValueError(f"no room for {size} bytes")
        self.unpacked += size
        return self.buf.data[start : start + size]

    def forget_unpacked(self) -> None:
        self.unpacked = self.room

    def shift(self, start: int) -> None:
        """Drops the received bytes before `start`."""
        size = self.received - start
        if start:
            self.buf[:size] = self.buf[start : self.received]
        self.received = size

    def shrink(self) -> None:
        """Returns to the first size after a large event, if the received bytes fit."""
        if self.room > self._receive_bytes and 2 * self.received < self._receive_bytes:
            self._resize(self._receive_bytes, 0)

    def reset(self) -> None:
        """Empties the buffer and returns to the first size."""
        if self.room > self._receive_bytes:
            self.buf = np.empty(self._receive_bytes, np.uint8)
            self.room = self._receive_bytes
        self.received = 0
        self.unpacked = self.room

    def grow_unpacked(self, size: int) -> None:
        """Makes room for `size` decompressed bytes in all. Keeps the bytes that are already decompressed."""
        _check_size(size)
        if self.room + size > len(self.buf):
            larger = np.empty(self.room + size, np.uint8)
            larger[: len(self.buf)] = self.buf
            self.buf = larger
        self.unpacked = self.room + size

    def grow(self, needed: int) -> None:
        """Makes room for a packet of `needed` bytes. Drops the decompressed bytes."""
        _check_size(needed)
        self._resize(needed, 0)

    def join(self, at: int) -> bool:
        """Joins the packets of the event at `at`, which is split over several. False while one of them is missing.

        https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_packets.html
        """
        ends = [at + 4 + _WIDE]
        while True:
            head = ends[-1]
            if head + 4 > self.received:
                return False
            size = int.from_bytes(self.buf[head : head + 3].tobytes(), "little")
            if head + 4 + size > self.received:
                return False
            ends.append(head + 4 + size)
            if size < _WIDE:
                break
        write = ends[0]
        for head, end in pairwise(ends):
            part = end - head - 4
            self.buf[write : write + part] = self.buf[head + 4 : end]
            write += part
        rest = self.received - ends[-1]
        self.buf[write : write + rest] = self.buf[ends[-1] : self.received]
        self.received = write + rest
        self.buf[at : at + 3] = list(JOINED.to_bytes(3, "little"))
        return True

    def needed(self, at: int) -> int:
        """Bytes of the packet at `at`, with the headers of all its parts; 0 while its event's header is incomplete."""
        if at + 18 > self.received:
            return 0
        event_size = int.from_bytes(self.buf[at + 14 : at + 18].tobytes(), "little")
        return 5 + event_size + 4 * (event_size // _WIDE + 1)

    def _resize(self, room: int, unpack: int) -> None:
        larger = np.empty(room + unpack, np.uint8)
        larger[: self.received] = self.buf[: self.received]
        self.buf, self.room, self.unpacked = larger, room, room


def _check_size(size: int) -> None:
    if size > MAX_BYTES:
        raise SourceNotUsableError(
            f"An event of the log has {size} bytes. The limit is {MAX_BYTES}.",
            "Exclude the table with such rows: source.exclude_tables.",
        )
