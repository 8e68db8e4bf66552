"""pg_upgrade of private PostgreSQL servers. It needs all programs of the server, which only some packages have."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from devtools.server import Server
from devtools.server_commands import Option, arguments, merged_options, postgres_user
from devtools.servers import start_server
from tests.support.servers import Database

NEWEST = "18-programs"
QUIET: Mapping[str, Option] = {"autovacuum": False, "max_replication_slots": 40}
"""Settings of a server on which nothing is written but by the test."""


@contextmanager
def server_with(database: str, version: str = NEWEST, **options: Option) -> Iterator[Database]:
    """A server of the caller's own with a database without tables."""
    with start_server("postgres", {**QUIET, **options}, version) as server:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {database}")
        found = Database(server, database)
        found.execute('CREATE COLLATION "und-x-icu" FROM "C"')  # the packages with all programs are built without ICU
        yield found


@contextmanager
def upgraded(old: Database, version: str = NEWEST, **options: Option) -> Iterator[Database]:
    """The database on another server after pg_upgrade. The old server is stopped."""
    with start_server("postgres", {**QUIET, **options}, version) as server:
        server.stop()
        old.server.stop()
        ended = pg_upgrade(old.server, server)
        assert ended.returncode == 0, f"{ended.stdout}\n{_details(server)}"
        server.start()
        yield replace(old, server=server)


def pg_upgrade(old: Server, new: Server, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs pg_upgrade for servers that are stopped."""
    settings = " ".join(arguments("postgres", merged_options("postgres", QUIET)))
    old_bin, new_bin = (str(_folder(server) / "postgres/bin") for server in (old, new))
    old_data, new_data = (str(_folder(server) / "data") for server in (old, new))
    if old.version.partition(".")[0] != new.version.partition(".")[0]:  # initdb of 18 turns them on
        _run(old, new, "pg_checksums", "--disable", "-D", new_data)
    places = ["-b", old_bin, "-B", new_bin, "-d", old_data, "-D", new_data, "-s", str(_folder(new)), "-U", "postgres"]
    return _run(old, new, "pg_upgrade", *places, "-o", settings, "-O", settings, *more)


def _run(old: Server, new: Server, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the new server as the user that runs both."""
    libraries = ":".join(str(_folder(server) / "postgres/lib") for server in (new, old))
    user = postgres_user()
    owner: dict[str, Any] = {} if user is None else {"user": user[0], "group": user[1], "extra_groups": ()}
    return subprocess.run(
        [str(_folder(new) / "postgres/bin" / program), *words],
        cwd=_folder(new),
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": libraries},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        **owner,
    )


def _details(new: Server) -> str:
    """Returns what pg_upgrade wrote about its failure."""
    found = sorted((_folder(new) / "data/pg_upgrade_output.d").rglob("*.txt"))
    return "\n".join(f"{path.name}: {path.read_text()}" for path in found)


def _folder(server: Server) -> Path:
    assert server.data_folder is not None
    return server.data_folder.parent
