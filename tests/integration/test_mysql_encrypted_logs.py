"""Logs that a server encrypts on its disk. What it sends is read as without."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.mysql_log import LoggedServer
from devtools.server import Server
from devtools.server_commands import merged_options
from devtools.server_packages import ServerUnavailableError, Unpacked, find_package, unpack
from devtools.server_process import SupervisedProcess
from devtools.servers import start_server

pytestmark = pytest.mark.integration


@contextlib.contextmanager
def encrypting_mysql(folder: Path) -> Iterator[Server]:
    """MySQL names its keyring in the folder of its program, so the server runs from a folder of its own."""
    package = find_package("mysql", None)
    root = folder / "server"
    try:
        unpacked = unpack(package).root
    except ServerUnavailableError as error:
        pytest.skip(f"MySQL's folder must be here, not in a container: {error}")
    try:
        shutil.copytree(unpacked, root, symlinks=True, copy_function=os.link)
    except (OSError, shutil.Error):  # the cache is on another file system
        shutil.rmtree(root)
        shutil.copytree(unpacked, root, symlinks=True)
    (root / "usr/sbin/mysqld.my").write_text(json.dumps({"components": "file://component_keyring_file"}))
    keyring = {"path": str(folder / "keyring"), "read_only": False}
    (root / "usr/lib/mysql/plugin/component_keyring_file.cnf").write_text(json.dumps(keyring))
    process = SupervisedProcess(Unpacked(package, root), merged_options("mysql", {"binlog_encryption": True}))
    with Server.of_process("mysql", process) as server:
        server.start()
        yield server


@contextlib.contextmanager
def encrypting_mariadb(folder: Path) -> Iterator[Server]:
    keys = folder / "keys"
    keys.write_text(f"1;{secrets.token_hex(32)}\n")
    options = {"plugin_load_add": "file_key_management", "file_key_management_filename": str(keys)}
    with start_server("mariadb", {**options, "encrypt_binlog": True}, "10.11-plugins") as server:
        yield server


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.every_server)])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoggedServer]:
    with (encrypting_mysql if request.param == "mysql" else encrypting_mariadb)(tmp_path) as server:
        yield LoggedServer(server, request.param)


def is_encrypted(logged: LoggedServer, file: str) -> bool:
    """Whether the file on the disk is not what the server sends."""
    assert logged.server.data_folder is not None
    content = (logged.server.data_folder / file).read_bytes()
    if not logged.is_mariadb:
        return content.startswith(b"\xfdbin")  # MySQL's mark of an encrypted file, \xfebin is that of a plain one
    return b"secret" not in content and any(row[2] == "Start_encryption" for row in logged.query("SHOW BINLOG EVENTS"))


@pytest.mark.pitfall(112)
def test_an_encrypted_log_is_followed_through_its_files(logged: LoggedServer) -> None:
    logged.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(200))")
    logged.forget()
    first = logged.start
    logged.execute("INSERT INTO t VALUES (1, 'secret'), (2, NULL)", "UPDATE t SET v = 'secret' WHERE id = 2")
    assert is_encrypted(logged, first.file)
    assert [(change["id"], change["v"]) for change in logged.read("t")] == [(1, "secret"), (2, None), (2, "secret")]
    within = logged.start  # a reading that begins within a file still needs the file's own description
    logged.execute("INSERT INTO t VALUES (3, 'secret')", "FLUSH BINARY LOGS", "DELETE FROM t WHERE id = 1")
    assert [change["id"] for change in logged.read("t")] == [3, 1]
    assert logged.start.file != first.file
    logged.start = within
    assert [change["id"] for change in logged.read("t")] == [3, 1]
    logged.server.restart()
    logged.execute("INSERT INTO t VALUES (4, 'secret')")
    assert [change["id"] for change in logged.read("t")] == [4]
