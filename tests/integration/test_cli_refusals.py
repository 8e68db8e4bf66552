"""The exit codes by which scripts tell causes apart, as far as no Spark is needed: test_cli_runs.py has the others."""

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from devtools.server import Server
from devtools.server_process import free_port
from devtools.servers import start_server
from tests.support.cli import INTERRUPTED, CommandLine, job_of, waits_for_lease
from tests.support.epochs import run_epochs
from tests.support.jobs import BY_DRIVER, running, source_of, write_job
from tests.support.mysql_accounts import account
from tests.support.servers import Database, fresh_database
from tidemark.conf import reconnect as reconnecting
from tidemark.conf.load import load_job_file
from tidemark.jobs.spark import session
from tidemark.readers.lease import Lease, checkpoint_lock
from tidemark.readers.mysql.lease import MySqlLock
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = pytest.mark.integration


def test_the_exit_code_is_that_of_the_cause_also_if_nobody_takes_the_output(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "tidemark.jobs.cli", "status", str(tmp_path / "missing.yaml"), "--json")
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    (line,) = ended.stderr.splitlines()
    assert (ended.returncode, "can't be read" in line) == (2, True)


# Exit code 1: the checkpoint


def test_a_checkpoint_that_is_not_the_jobs_is_refused(tidemark: CommandLine, shop: Database, tmp_path: Path) -> None:
    job = job_of(tmp_path, shop)
    ended = tidemark("status", job)
    assert (ended.code, "has no checkpoint" in ended.last_line) == (1, True)
    assert tidemark("checkpoints", job).code == 1
    run_epochs(job)
    ended = tidemark("run", job, "--set", "job=another")
    assert (ended.code, "belongs to job test-job, not to another" in ended.last_line) == (1, True)
    plan = tmp_path / "checkpoint/plans/e0000000001"
    plan.write_bytes(plan.read_bytes().replace(b"snapshot", b"snapshoT", 1))
    ended = tidemark("checkpoints", job)
    assert (ended.code, "plans/e0000000001 is damaged" in ended.last_line) == (1, True)
    (tmp_path / "checkpoint/job").unlink()
    ended = tidemark("run", job)
    assert (ended.code, "has lost its file `job`" in ended.last_line) == (1, True)


def test_a_checkpoint_that_cant_be_written_is_found_before_the_start(
    tidemark: CommandLine, shop: Database, tmp_path: Path
) -> None:
    (tmp_path / "occupied").write_text("a file where a folder is expected")
    job = job_of(tmp_path, shop, checkpoint="./occupied/checkpoint")
    for command in (["validate", job, "--connect"], ["run", job]):
        ended = tidemark(*command)
        assert (ended.code, "occupied is no folder" in ended.last_line) == (1, True)
    assert not (tmp_path / "out").exists()
    assert tidemark("run", job, "--set", f"checkpoint={tmp_path}/free/checkpoint", *BY_DRIVER).code == 0


def test_what_is_unexpected_shows_its_traceback_to_who_asks(
    tidemark: CommandLine, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint").write_text("a file where a folder is expected")
    job = job_of(tmp_path, shop)
    ended = tidemark("status", job)
    assert (ended.code, ended.last_line.startswith("tidemark: unexpected: NotADirectoryError at ")) == (1, True)
    monkeypatch.setenv("TIDEMARK_DEBUG", "1")
    with pytest.raises(AssertionError, match="Traceback"):
        tidemark("status", job)


# Exit code 2


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["run", "missing.yaml"], "missing.yaml"),
        (["run", "JOB", "--set", "sink.pth=/x"], "Did you mean 'path'"),
        (["validate", "JOB", "--set", "snapshot.split_rows=no"], "--set snapshot.split_rows: must be a whole number"),
        (["plan", "JOB", "--substitute", "--set", "source.url=mysql://u:${NO_SUCH_NAME}@h/"], "NO_SUCH_NAME"),
        (["status", "JOB", "--substitute", "--set", "checkpoint=${NO_SUCH_NAME}/c"], "NO_SUCH_NAME"),
        (["status", "JOB", "--set", "source.url=mysql://u:${NO_SUCH_NAME}@h/"], "Add --substitute"),
        (["run", "JOB", "--set", "mode=full", "--set", "trigger=1s"], "trigger: must be once in mode full"),
        (["plan", "JOB", "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
        (["run"], "JOB.yaml"),
        (["run", "JOB", "--summary", "/no/such/folder/summary.json"], "in a folder that does not exist"),
        (["checkpoints", "JOB", "rollback"], "has no action 'rollback'"),
        (["checkpoints", "JOB", "no-such-action"], "no-such-action"),
    ],
)
def test_a_wrong_file_or_command_line_is_2(
    tidemark: CommandLine, tmp_path: Path, arguments: list[str], cause: str
) -> None:
    source = {"url": "mysql://cdc:secret@nowhere.invalid/", "tables": ["shop.*"]}
    job = write_job(tmp_path, source=source, sink={"type": "files", "path": "/out"})
    ended = tidemark(*[str(job) if argument == "JOB" else argument for argument in arguments])
    assert ended.code == 2
    assert cause in ended.last_line
    assert "secret" not in ended.out + ended.err


# Exit code 3


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    """A server of the test's own, because its settings and its log are changed."""
    with start_server("mysql") as server:
        yield server


@pytest.mark.parametrize(
    ("setting", "good"),
    [("binlog_format=STATEMENT", "ROW"), ("binlog_row_image=MINIMAL", "FULL"), ("binlog_row_metadata=MINIMAL", "FULL")],
)
def test_a_setting_that_loses_changes_is_3(
    tidemark: CommandLine, own_server: Server, tmp_path: Path, setting: str, good: str
) -> None:
    name, bad = setting.split("=")
    with fresh_database(own_server) as database:
        database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", f"SET GLOBAL {name} = '{bad}'")
        try:
            job = job_of(tmp_path, database)
            for command in (["run", job], ["validate", job, "--connect"], ["plan", job]):
                ended = tidemark(*command)
                assert ended.code == 3
                assert f"{name} is {bad}" in ended.last_line
                assert f"SET GLOBAL {name} = '{good}'" in ended.last_line
        finally:
            database.execute(f"SET GLOBAL {name} = '{good}'")


@pytest.mark.pitfall(84)
def test_an_account_without_grants_is_3_and_its_password_is_shown_nowhere(
    tidemark: CommandLine, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = shop.server
    with account(server, f"SELECT ON {shop.name}.*", "REPLICATION CLIENT ON *.*") as endpoint:
        password = endpoint.password.get_secret_value()
        monkeypatch.setenv("CDC_PASSWORD", password)
        url = f"mysql://{endpoint.user}:${{CDC_PASSWORD}}@{server.host}:{server.port}/"
        job = job_of(tmp_path, shop, source={"url": url, "tables": [f"{shop.name}.orders"]})
        ended = tidemark("run", job)
        assert ended.code == 3
        assert "GRANT REPLICATION SLAVE ON *.* TO" in ended.last_line
        monkeypatch.setenv("CDC_PASSWORD", f"{password}x")
        wrong = tidemark("run", job)
        assert (wrong.code, "Check user and password" in wrong.last_line) == (3, True)
        assert password not in ended.out + ended.err + wrong.out + wrong.err


def test_tables_that_a_sink_can_t_take_or_that_are_not_there_are_3(
    tidemark: CommandLine, shop: Database, postgres_database: Database, tmp_path: Path
) -> None:
    mirror = {"type": "mirror", "url": postgres_database.url, "table": "{table}"}
    ended = tidemark("run", job_of(tmp_path, shop, "notes", sink=mirror))
    assert ended.code == 3
    assert "source.keys" in ended.last_line
    ended = tidemark("run", job_of(tmp_path, shop, "no_such_table"))
    assert (ended.code, "no_such_table" in ended.last_line) == (3, True)
    ended = tidemark(
        "plan", job_of(tmp_path, shop), "--set", f"source.url=mariadb://root@127.0.0.1:{shop.server.port}/"
    )
    assert (ended.code, "Write mysql:// in source.url" in ended.last_line) == (3, True)


# Exit code 4; what leads there: test_job_continuity.py


def test_a_log_position_that_is_gone_is_4(
    tidemark: CommandLine, own_server: Server, shop: Database, tmp_path: Path
) -> None:
    with fresh_database(own_server) as database:
        database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
        job = job_of(tmp_path, database)
        run_epochs(job)
        ended = tidemark(
            "run", job, "--set", f"source.url={shop.server.url}", "--set", f"source.tables=[{shop.name}.*]"
        )
        assert (ended.code, "Another server answers" in ended.last_line) == (4, True)
        database.execute("INSERT INTO orders VALUES (1)", "FLUSH BINARY LOGS")
        (*_, last) = database.query("SHOW BINARY LOGS")
        database.execute(f"PURGE BINARY LOGS TO '{last[0]}'")
        ended = tidemark("run", job)
        assert ended.code == 4
        assert "The source no longer has" in ended.last_line
        assert "binlog_expire_logs_seconds" in ended.last_line


# Exit code 5


def test_a_sink_that_is_out_of_reach_is_7_and_one_that_can_t_be_used_is_5(
    tidemark: CommandLine,
    shop: Database,
    postgres_database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconnecting, "FIRST_DELAY_SECONDS", 0.0)
    down = f"postgresql://etl:topsecret@127.0.0.1:{free_port()}/analytics"
    job = job_of(tmp_path, shop, sink={"type": "mirror", "url": down, "table": "{table}"})
    for command in (["run", job], ["validate", job, "--connect"], ["plan", job]):
        ended = tidemark(*command)
        assert ended.code == 7
        assert "topsecret" not in ended.out + ended.err
    postgres_database.execute("CREATE ROLE reader LOGIN PASSWORD 'readonly'")
    try:
        url = f"postgresql://reader:readonly@127.0.0.1:{postgres_database.server.port}/{postgres_database.name}"
        ended = tidemark("run", job, "--set", f"sink.url={url}")
        assert (ended.code, "may not create tables" in ended.last_line) == (5, True)
    finally:
        postgres_database.execute("DROP ROLE reader")
    (tmp_path / "out").write_text("no folder")
    ended = tidemark("run", job_of(tmp_path, shop, checkpoint="./another"))
    assert (ended.code, "can't be written to" in ended.last_line) == (5, True)


def test_a_target_table_that_lost_its_key_is_5(
    tidemark: CommandLine, shop: Database, postgres_database: Database, tmp_path: Path
) -> None:
    job = job_of(tmp_path, shop, sink={"type": "mirror", "url": postgres_database.url, "table": "{table}"})
    run_epochs(job)
    assert len(postgres_database.query("SELECT * FROM orders")) == 7
    postgres_database.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    ended = tidemark("run", job)
    assert (ended.code, "key" in ended.last_line) == (5, True)
    stopped = tidemark("status", job).out.splitlines()[1]
    assert re.fullmatch(r"run       STOPPED \d{4}-\d\d-\d\d \d\d:\d\d:\d\d, exit 5: .*", stopped)
    assert stopped.endswith(ended.last_line.removeprefix("tidemark: "))
    told = json.loads(tidemark("status", job, "--json").out)["run"]
    assert (told["state"], told["exit_code"]) == ("failed", 5)
    assert ended.last_line == f"tidemark: {told['cause']} Remedy: {told['remedy']}"
    page = tmp_path / "report.html"
    assert tidemark("report", job, "-o", page).code == 0
    assert re.search(r'id="phase">STOPPED .*, exit 5<', page.read_text())
    assert "following the log" not in page.read_text()


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_a_refused_first_start_leaves_nothing_behind_and_the_corrected_one_is_the_first(
    tidemark: CommandLine, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Neither a start position in the checkpoint nor a slot and a publication in the source."""
    source: Database = request.getfixturevalue(f"{kind}_database")
    target: Database = request.getfixturevalue("mysql_database" if kind == "postgres" else "postgres_database")
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    right = target.url if target.kind == "postgres" else f"{target.server.url}{target.name}"
    job = write_job(tmp_path, source=source_of(source), sink={"type": "mirror", "url": right, "table": "copy_{table}"})
    if target.kind == "postgres":
        ended = tidemark("run", job, "--set", f"sink.url={right}_misspelt")
        assert (ended.code, "Create that database, or correct sink.url." in ended.last_line) == (5, True)
    else:  # a database that is missing is created
        target.execute("CREATE TABLE copy_orders (id INT PRIMARY KEY)", "INSERT INTO copy_orders VALUES (7)")
        ended = tidemark("run", job)
        assert (ended.code, "copy_orders" in ended.last_line) == (5, True)
        target.execute("DROP TABLE copy_orders")
    assert [event["event"] for event in ended.events()] == ["failed"]
    assert "has no checkpoint" in tidemark("status", job).last_line
    if kind == "postgres":
        assert source.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []
        assert source.query("SELECT pubname FROM pg_publication") == []
    ended = tidemark("run", job, *BY_DRIVER)
    assert (ended.code, ended.events()[0]["event"]) == (0, "started")
    assert target.query("SELECT id FROM copy_orders ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("kind", ["mysql", "mariadb", "postgres"])
def test_views_and_every_pattern_without_a_table_are_said(
    tidemark: CommandLine, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Database = request.getfixturevalue(f"{kind}_database")
    source.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE VIEW newest AS SELECT * FROM orders")
    job = write_job(tmp_path, source=source_of(source), sink={"type": "files", "path": str(tmp_path / "out")})
    assert f"such as views: {source.schema}.newest" in tidemark("plan", job).out
    assert f"such as views: {source.schema}.newest" in tidemark("validate", job, "--connect").out
    excluded = ("--set", f"source.exclude_tables=[{source.schema}.newest]")
    assert "such as views" not in tidemark("plan", job, *excluded).out
    told = [event.get("text", "") for event in tidemark("run", job, *BY_DRIVER).events()]
    assert [f"{source.schema}.newest" in text for text in told if "such as views" in text] == [True]
    patterns = f"source.tables=[{source.schema}.orders, {source.schema}.misspelt, {source.schema}.no*]"
    ended = tidemark("plan", job, "--set", patterns, "--set", "checkpoint=./another")
    assert ended.code == 3
    assert "misspelt" in ended.last_line
    assert ".no* matches no table" in ended.last_line


def test_new_delta_tables_are_checked_without_spark(
    tidemark: CommandLine, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "open_session", lambda _: pytest.fail("Spark was started"))
    job = job_of(tmp_path, shop, sink={"type": "delta", "path": "./lake"})
    for command in (["validate", job, "--connect"], ["plan", job]):
        ended = tidemark(*command)
        assert (ended.code, "will be created as the Delta table" in ended.out) == (0, True)
    (tmp_path / "lake").write_text("no folder")
    ended = tidemark("validate", job, "--connect")
    assert (ended.code, "can't be written to" in ended.last_line) == (5, True)


# Exit code 6


@pytest.mark.servers_in_turn("source_database")
def test_a_second_driver_is_6(tidemark: CommandLine, source_database: Database, tmp_path: Path) -> None:
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    path = job_of(tmp_path, source_database)
    job = load_job_file(path)
    with contextlib.closing(Lease.acquire(MySqlLock(job.source.url, None, checkpoint_lock(job.checkpoint)))):
        ended = tidemark("run", path)
        assert ended.code == 6
        assert "Another driver runs this job" in ended.last_line
        assert "--standby" in ended.last_line
        assert tidemark("validate", path, "--connect").code == 0
        with running(path, "--standby") as waiting:  # exit code 130, before there is anything to finish
            waiting.wait_until(lambda: waits_for_lease(source_database))
            waiting.popen.terminate()
            assert waiting.wait() == 130
            assert waiting.error_text() == f"{INTERRUPTED}\n"
    assert Checkpoint.at(job.checkpoint).job_state() is None


# Exit code 7


def test_a_source_that_does_not_answer_is_7(
    tidemark: CommandLine, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnecting, "FIRST_DELAY_SECONDS", 0.0)
    summary = tmp_path / "summary.json"
    summary.write_text('{"exit_code": 0}')
    url = f"source.url=mysql://root:topsecret@127.0.0.1:{free_port()}/"
    ended = tidemark("run", job_of(tmp_path, shop), "--set", url, "--summary", summary)
    assert (ended.code, "No connection to 127.0.0.1" in ended.last_line) == (7, True)
    told = json.loads(summary.read_text())
    assert (told["job"], told["exit_code"], told["interrupted"]) == ("test-job", 7, False)
    assert ended.last_line == f"tidemark: {told['cause']} Remedy: {told['remedy']}"
    assert json.loads(ended.out.splitlines()[-1]) | {"at": ""} == {"at": "", "event": "failed", **told}
    assert "topsecret" not in ended.out + ended.err + summary.read_text()


def test_a_run_that_fails_before_it_knows_its_job_tells_it_too(tidemark: CommandLine, tmp_path: Path) -> None:
    summary = tmp_path / "summary.json"
    summary.write_text('{"exit_code": 0}')
    ended = tidemark("run", tmp_path / "missing.yaml", "--summary", summary)
    told = json.loads(summary.read_text())
    assert (ended.code, told["exit_code"], "missing.yaml" in told["cause"]) == (2, 2, True)
    assert json.loads(ended.out)["event"] == "failed"
    summary.unlink()
    summary.mkdir()
    ended = tidemark("run", tmp_path / "missing.yaml", "--summary", summary)
    assert (ended.code, "--summary" in ended.last_line) == (2, True)


@pytest.mark.parametrize("arguments", [("status",), ("reconcile",), ("status", "--no-such-option")])
def test_json_output_of_a_failure_ends_with_the_event_failed(
    tidemark: CommandLine, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command, *options = arguments
    ended = tidemark(command, tmp_path / "none.yaml", "--json", *options)
    (failed,) = ended.events()
    assert (failed["event"], failed["exit_code"], ended.code) == ("failed", 2, 2)
    assert ended.last_line == f"tidemark: {failed['cause']} Remedy: {failed['remedy']}"
    assert tidemark(command, tmp_path / "none.yaml", *options).out == ""
