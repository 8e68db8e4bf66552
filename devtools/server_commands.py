"""Initialising and starting each kind of server: its data folder, command line and default settings.

Settings map a server variable's name to its value. Text and numbers are passed as they are, True and False as ON and OFF.
None is a flag without a value.
"""

import hashlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devtools.server_packages import DebianPackage, ServerUnavailableError, Unpacked, built_once

Option = str | int | bool | None

MYSQL_OPTIONS: Mapping[str, Option] = {
    "gtid_mode": True,
    "enforce_gtid_consistency": True,
    "binlog_row_metadata": "FULL",
    "server_id": 1,
    "log_bin": "binlog",
    "innodb_flush_log_at_trx_commit": 2,
    "sync_binlog": 0,
    "innodb_flush_method": "nosync",  # else each CREATE TABLE and DROP TABLE waits for the disk. A SIGKILL loses nothing
    "innodb_buffer_pool_size": "256M",
    # MySQL alone reserves 160 MB more by default for these, and for what performance_schema keeps of tables.
    "innodb_log_buffer_size": "8M",
    "table_open_cache": 400,
    "table_definition_cache": 400,
    "mysqlx": False,
    "local_infile": False,
    "require_secure_transport": False,
    "secure_file_priv": "",
}
MARIADB_OPTIONS: Mapping[str, Option] = {
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_metadata": "FULL",
    "server_id": 1,
    "innodb_flush_log_at_trx_commit": 2,
    "sync_binlog": 0,
    "innodb_buffer_pool_size": "256M",
    "local_infile": False,
    "ssl": False,  # else MariaDB 11.4 generates a key at each start, for many seconds
}
POSTGRES_OPTIONS: Mapping[str, Option] = {
    "wal_level": "logical",
    "max_wal_senders": 20,
    "max_replication_slots": 20,
    "fsync": False,
    "full_page_writes": False,  # a SIGKILL tears no page
    "dynamic_shared_memory_type": "mmap",  # in the data folder: nothing is left in memory after a SIGKILL
    "shared_buffers": "256MB",
}
DEFAULT_OPTIONS = {"mysql": MYSQL_OPTIONS, "mariadb": MARIADB_OPTIONS, "postgres": POSTGRES_OPTIONS}

# A data folder is created for these values. A server refuses to start on it with other ones.
OPTIONS_OF_THE_DATA = frozenset({"lower_case_table_names", "innodb_page_size", "innodb_data_file_path"})
STOP_SIGNALS = {"mysql": signal.SIGTERM, "mariadb": signal.SIGTERM, "postgres": signal.SIGINT}  # PostgreSQL's "fast"
# End a server whose data are no longer needed. PostgreSQL still removes its shared memory ("immediate").
LAST_SIGNALS = {"mysql": signal.SIGKILL, "mariadb": signal.SIGKILL, "postgres": signal.SIGQUIT}
INITIALISE_TIMEOUT_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Launch:
    """A program that the supervisor starts. `user` is (uid, gid), None for the current user."""

    argv: list[str]
    environment: dict[str, str]
    user: tuple[int, int] | None


def merged_options(kind: str, options: Mapping[str, Option] | None) -> dict[str, Option]:
    """Returns the kind's default settings, overridden by `options`. Dashes in names count as underscores."""
    given = {name.replace("-", "_"): value for name, value in (options or {}).items()}
    return {**DEFAULT_OPTIONS[kind], **given}


def arguments(kind: str, options: Mapping[str, Option]) -> list[str]:
    """Returns the settings as arguments of the server's command line."""
    words = []
    for name, value in options.items():
        text = {True: "ON", False: "OFF"}[value] if isinstance(value, bool) else str(value)
        if kind == "postgres":
            words += ["-c", f"{name}={text}"]
        elif name == "log_bin" and value is False:
            words.append("--skip-log-bin")  # --log-bin=OFF would name the files OFF.000001
        elif value is None:
            words.append(f"--{name.replace('_', '-')}")
        else:
            words.append(f"--{name.replace('_', '-')}={text}")
    return words


def prepare(unpacked: Unpacked, folder: Path, options: Mapping[str, Option]) -> Launch | None:
    """Creates `folder/data`, an initialised and empty server whose superuser has no password.

    If a program is returned, it must run to its end successfully before the first start.
    """
    if unpacked.package.kind == "postgres":
        return _prepare_postgres(unpacked, folder)
    shutil.copytree(data_template(unpacked, options), folder / "data")
    return None


def data_template(unpacked: Unpacked, options: Mapping[str, Option]) -> Path:
    """Returns an initialised data folder to copy. It is never started. Initialising takes seconds, copying does not."""
    for_data = {name: value for name, value in options.items() if name in OPTIONS_OF_THE_DATA}
    digest = hashlib.sha256(repr(sorted(for_data.items())).encode()).hexdigest()[:8] if for_data else "default"
    template = unpacked.root.parent / "templates" / f"{unpacked.name}-{digest}"
    template.parent.mkdir(parents=True, exist_ok=True)
    with built_once(template) as filling:
        if filling is not None:
            initialise = _initialise_mysql if unpacked.package.kind == "mysql" else _initialise_mariadb
            initialise(unpacked, filling, arguments(unpacked.package.kind, for_data))
    return template


def launch(unpacked: Unpacked, folder: Path, port: int, options: Mapping[str, Option]) -> Launch:
    """Returns the command of a server on `folder/data`, which listens on loopback and on a socket inside `folder`."""
    kind, data = unpacked.package.kind, folder / "data"
    if kind == "postgres":
        place = ["-D", str(data), "-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
        program = folder / "postgres/bin/postgres"
        return Launch([str(program), *place, *arguments(kind, options)], _postgres_environment(folder), postgres_user())
    place = [f"--datadir={data}", f"--port={port}", f"--socket={folder}/socket", "--bind-address=127.0.0.1"]
    temporary = folder / "tmp"  # a MariaDB server that starts removes the temporary tables of all servers in its tmpdir
    temporary.mkdir(exist_ok=True)
    place += [f"--pid-file={folder}/pid", f"--tmpdir={temporary}"]
    return Launch([*_daemon(unpacked), *place, *arguments(kind, options)], {}, None)


# MySQL and MariaDB


def _daemon(unpacked: Unpacked) -> list[str]:
    """Returns the part of the daemon's command that depends on the location of its files and on the user who runs it."""
    root, kind = unpacked.root, unpacked.package.kind
    if isinstance(unpacked.package, DebianPackage):
        daemon = "mysqld" if kind == "mysql" else "mariadbd"
        base, program = root / "usr", [*_loader(root), str(root / "usr/sbin" / daemon)]
        share, plugins = base / "share/mysql", base / "lib/mysql/plugin"
    else:
        daemons = [root / "bin" / name for name in ("mariadbd", "mysqld")]
        base, program = root, [*_loader(root / "debian"), str(next(path for path in daemons if path.exists()))]
        share, plugins = base / "share", base / "lib/plugin"
    words = [*program, "--no-defaults", f"--basedir={base}", f"--lc-messages-dir={share}"]
    words += [f"--character-sets-dir={share}/charsets", f"--plugin-dir={plugins}"]
    if os.geteuid() == 0:
        words.append("--user=root")
    return words


def _loader(root: Path) -> list[str]:
    """Returns the command of the dynamic loader of an unpacked Debian, with its libraries; nothing if there is none."""
    if not root.exists():
        return []
    root = root.resolve()
    libraries = root / "usr/lib/x86_64-linux-gnu"
    path = [libraries, *(folder for folder in (root / "lib/x86_64-linux-gnu",) if folder.exists())]
    return [str(next(root.glob("**/ld-linux-x86-64.so.2"))), "--library-path", ":".join(map(str, path))]


def _initialise_mysql(unpacked: Unpacked, data: Path, options: list[str]) -> None:
    _run_initialiser([*_daemon(unpacked), f"--datadir={data}", "--initialize-insecure", *options], stdin=b"")
    (data / "auto.cnf").unlink(missing_ok=True)  # every copy of the template gets its own server_uuid


def _initialise_mariadb(unpacked: Unpacked, data: Path, options: list[str]) -> None:
    """Does what mariadb-install-db does, without its shell script, which would look for programs of this machine."""
    share = next(unpacked.root.glob("**/fill_help_tables.sql")).parent
    names = ["*_system_tables.sql", "*_performance_tables.sql", "*_system_tables_data.sql", "fill_help_tables.sql"]
    names += ["maria_add_gis_sp_bootstrap.sql", "*_sys_schema.sql"]
    (data / "mysql").mkdir()
    script = (
        b"create database if not exists mysql;\nuse mysql;\nset @auth_root_socket=NULL;\nset @skip_auth_anonymous=1;\n"
    )
    script += b"\n".join(path.read_bytes() for name in names for path in share.glob(name))  # older ones lack sys
    extra = ["--bootstrap", "--enforce-storage-engine=", "--max-allowed-packet=8M", "--net-buffer-length=16K"]
    _run_initialiser([*_daemon(unpacked), f"--datadir={data}", *extra, *options], stdin=script)


def _run_initialiser(command: list[str], *, stdin: bytes) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        command = [*command, f"--tmpdir={temporary}"]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=INITIALISE_TIMEOUT_SECONDS, cwd="/")
    if done.returncode != 0:
        output = (done.stdout + done.stderr).decode(errors="replace")[-3000:]
        raise ServerUnavailableError(f"{' '.join(command)}\nended with {done.returncode}:\n{output}")


# PostgreSQL


def postgres_user() -> tuple[int, int] | None:
    """Returns the user to run PostgreSQL as, None for the current one. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return account.pw_uid, account.pw_gid
    raise ServerUnavailableError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


def _postgres_environment(folder: Path) -> dict[str, str]:
    return {"LD_LIBRARY_PATH": str(folder / "postgres/lib"), "LC_ALL": "C.UTF-8", "PGDATA": str(folder / "data")}


def _prepare_postgres(unpacked: Unpacked, folder: Path) -> Launch:
    """Prepares the folder and returns initdb's command. Every server gets its own system identifier, so no template is copied.

    The program's files are linked into the folder, because the user that runs it may not have access to the cache.
    """
    program = folder / "postgres"
    try:
        shutil.copytree(unpacked.root, program, symlinks=True, copy_function=os.link)
    except (OSError, shutil.Error):  # the cache is on another file system
        shutil.rmtree(program)
        shutil.copytree(unpacked.root, program, symlinks=True)
    data = folder / "data"
    data.mkdir(mode=0o700)
    user = postgres_user()
    if user is not None:
        for owned in (folder, data):
            os.chown(owned, *user)
    initialise = [
        str(program / "bin/initdb"),
        "-D",
        str(data),
        "-U",
        "postgres",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--no-sync",
    ]
    return Launch(initialise, _postgres_environment(folder), user)
