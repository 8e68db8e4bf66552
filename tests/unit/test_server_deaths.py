"""A test runs a second time only if a shared server that it used died during it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CONFTEST = """
from pathlib import Path
from devtools.server import Server
from tests.support import server_broker

pytest_plugins = ["tests.support.servers", "tests.support.server_deaths"]
DEAD = Path(__file__).with_name("dead")

class FakeProcess:
    data_folder = None

    def exit_code(self):
        return -11 if DEAD.exists() else None

    def log(self):
        return "got signal 11"

    def close(self):
        pass

class FakeServer(Server):
    def start(self):
        DEAD.unlink()

def start(wanted):
    return FakeServer(wanted.kind, "mysql://root@127.0.0.1:1/", FakeProcess(), version="9")

server_broker.shared_server = start
"""

TESTS = """
from pathlib import Path
import pymysql
import pytest

RUNS = Path(__file__).with_name("runs")
DEAD = Path(__file__).with_name("dead")

def run(name):
    with RUNS.open("a") as runs:
        runs.write(f"{name}\\n")
    return RUNS.read_text().split().count(name)

def connect(server):
    with pytest.raises(pymysql.err.OperationalError):  # nothing listens there
        server.connect()

@pytest.fixture
def used(mysql_server):
    connect(mysql_server)

@pytest.fixture(scope="module")
def broken_by_a_death(mysql_server):
    connect(mysql_server)
    if run("fixture") == 1:
        DEAD.touch()
        pytest.fail("the server died")

def test_server_dies_once(used):
    if run("once") == 1:
        DEAD.touch()
        pytest.fail("the server died")

def test_server_dies_in_a_fixture_of_the_module(broken_by_a_death):
    run("in_fixture")

def test_server_dies_twice(used):
    run("twice")
    DEAD.touch()
    pytest.fail("the server died")

def test_server_is_started_again_for_the_next_test(used):
    DEAD.unlink()
    run("after")

def test_fails_by_itself(used):
    run("by_itself")
    pytest.fail("wrong")

def test_uses_no_server():
    run("no_server")
    DEAD.touch()
    pytest.fail("wrong")
"""


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "in-a-worker"])
def test_only_tests_whose_server_died_run_again(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_inner.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    runs = (tmp_path / "runs").read_text().split()
    assert {name: runs.count(name) for name in runs} == {
        "once": 2,
        "fixture": 2,
        "in_fixture": 1,
        "twice": 2,
        "after": 1,
        "by_itself": 1,
        "no_server": 1,
    }, ended.stdout
    assert "3 failed, 3 passed" in ended.stdout
    assert "A SHARED DATABASE SERVER DIED" in ended.stdout
    summary = ended.stdout.partition("A SHARED DATABASE SERVER DIED")[2].partition("short test summary")[0]
    again = [line.partition("::")[2] for line in summary.splitlines() if "::" in line]
    assert again == [
        "test_server_dies_once",
        "test_server_dies_in_a_fixture_of_the_module",
        "test_server_dies_twice",
    ]
    assert summary.count("mysql ended with -11. The end of its log:\ngot signal 11") == 3
