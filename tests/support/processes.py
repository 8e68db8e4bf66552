"""Reads what Linux knows about a group of processes: command lines, and the addresses on which they listen."""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

_LISTENING = "0A"


def command_lines(group: int) -> dict[int, str]:
    """The command line of each process of the group, by its id."""
    found = {}
    for process in _processes(group):
        with contextlib.suppress(OSError):  # it has ended
            found[int(process.name)] = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
    return found


def listening_addresses(group: int) -> list[IPv4Address | IPv6Address]:
    """The addresses of all TCP sockets on which a process of the group listens."""
    ours = {inode for process in _processes(group) for inode in _sockets(process)}
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    return [_address(line[1].partition(":")[0]) for line in lines if line[3] == _LISTENING and line[9] in ours]


def _processes(group: int) -> Iterator[Path]:
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if os.getpgid(int(process.name)) == group:
                    yield process


def _sockets(process: Path) -> Iterator[str]:
    for handle in _entries(process / "fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(handle)
            if target.startswith("socket:["):
                yield target[8:-1]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # the process has ended
        return []


def _address(text: str) -> IPv4Address | IPv6Address:
    """The kernel prints words of four bytes in the machine's order."""
    words = [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    address = ip_address(socket.inet_ntop(family, packed))
    return getattr(address, "ipv4_mapped", None) or address
