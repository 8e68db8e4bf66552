"""Runs with Spark: how they end, by themselves, by signals and by errors. Each test asks much of few processes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.support.cli import INTERRUPTED, CommandLine, waits_for_lease
from tests.support.jobs import BY_SPARK, SPARK, Process, run_to_end, running, write_job
from tests.support.mysql_accounts import account
from tests.support.servers import Database

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

AT_ONCE_SECONDS = 30
NUMBERS = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 90) SELECT i, i % 7 FROM n"


def assert_interrupted(process: Process) -> None:
    assert process.wait() == 130
    assert process.error_text().splitlines()[-1] == INTERRUPTED
    assert "Traceback" not in process.error_text()


@pytest.mark.pitfall(84)
def test_a_second_driver_is_refused_or_waits_and_takes_over_and_no_secret_is_shown(
    tidemark: CommandLine, mysql_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mysql_database.server
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    (tmp_path / "events").mkdir()
    logged = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (tmp_path / "events").as_uri()}
    grants = (f"SELECT ON {mysql_database.name}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*")
    with account(server, *grants) as endpoint:
        password = endpoint.password.get_secret_value()
        monkeypatch.setenv("CDC_PASSWORD", password)
        url = f"mysql://{endpoint.user}:${{CDC_PASSWORD}}@{server.host}:{server.port}/"
        job = write_job(
            tmp_path,
            trigger="300ms",
            source={"url": url, "tables": [f"{mysql_database.name}.*"]},
            snapshot={"driver_rows": 0},
            sink={"type": "files", "path": str(tmp_path / "out")},
            spark={**SPARK, "conf": {**SPARK["conf"], **logged}},  # type: ignore[dict-item]
        )
        with running(job, environment={"TMPDIR": str(tmp_path)}) as first:
            first.wait_until(lambda: any(e.get("phase") == "stream" for e in first.events()))
            assert not list(tmp_path.glob("tidemark-*"))  # with Spark's settings; a kill would leave it behind
            second = tidemark("run", job)
            assert (second.code, "Another driver runs this job" in second.last_line) == (6, True)
            first.wait_until(lambda: json.loads(tidemark("status", job, "--json").out)["phase"] == "stream")
            with running(job, "--standby") as standby:
                standby.wait_until(lambda: waits_for_lease(mysql_database))
                os.killpg(first.popen.pid, signal.SIGTERM)  # to the JVM, too, as schedulers and systemd do
                assert_interrupted(first)
                standby.wait_until(lambda: any(e["event"] == "resumed" for e in standby.events()))
                mysql_database.execute("INSERT INTO orders VALUES (3)")
                standby.wait_until(lambda: any(e.get("changes") == 1 for e in standby.events()))
                standby.popen.send_signal(signal.SIGINT)
                assert_interrupted(standby)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if password.encode() in path.read_bytes()] == []
    assert [path for path in files if path.is_relative_to(tmp_path / "events")]


def test_signals_during_the_snapshot_and_the_summary_of_its_end(
    tidemark: CommandLine, mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY, kind INT)", f"INSERT INTO orders {NUMBERS}")
    job = write_job(
        tmp_path,
        mode="full",
        source={"url": mysql_database.server.url, "tables": [f"{mysql_database.name}.*"]},
        snapshot={"split_rows": 1, "parallelism": 1},
        sink={"type": "files", "path": str(tmp_path / "out")},
    )
    with running(job) as process:
        process.wait_until(lambda: any(e["event"] == "epoch" for e in process.events()))
        os.killpg(process.popen.pid, signal.SIGINT)  # as a terminal does
        assert_interrupted(process)
        events = [event["event"] for event in process.events()]
        assert events[-1] == "finished"
        assert "stopping" in events  # also if the signal came between two epochs
    interrupted = json.loads(tidemark("status", job, "--json").out)
    assert (interrupted["phase"], interrupted["run"]["state"], interrupted["run"]["exit_code"]) == (
        "snapshot",
        "ended",
        130,
    )
    assert interrupted["committed_epoch"] == interrupted["planned_epoch"]
    with running(job) as process:
        process.wait_until(lambda: any(e["event"] == "epoch" for e in process.events()))
        process.popen.send_signal(signal.SIGTERM)
        process.wait_until(lambda: any(e["event"] == "stopping" for e in process.events()))
        began = time.monotonic()
        process.popen.send_signal(signal.SIGTERM)
        assert_interrupted(process)
        assert time.monotonic() - began < AT_ONCE_SECONDS
    process = run_to_end(job, "--set", "snapshot.split_rows=500", "--summary", str(tmp_path / "summary.json"))
    epochs = [event for event in process.events() if event["event"] == "epoch"]
    assert (epochs[-1]["phase"], epochs[-1]["caught_up"]) == ("done", True)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {**summary, "at": "", "event": "finished"} == {**process.events()[-1], "at": ""}
    assert (summary["job"], summary["interrupted"], summary["phase"]) == ("test-job", False, "done")
    assert (summary["exit_code"], "cause" in summary) == (0, False)
    assert [(table["rows"], table["complete"]) for table in summary["tables"]] == [(90, True)]
    done = json.loads(tidemark("status", job, "--json").out)
    assert (done["phase"], done["run"]["exit_code"], done["run"]["cause"]) == ("done", 0, None)


@pytest.mark.every_server
def test_an_error_on_an_executor_ends_the_run_with_its_code_and_cause(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (41), (42)")
    postgres_database.execute("CREATE TABLE orders (id INT PRIMARY KEY CHECK (id <> 42))")
    job = write_job(
        tmp_path,
        source={"url": mysql_database.server.url, "tables": [f"{mysql_database.name}.*"]},
        sink={"type": "mirror", "url": postgres_database.url, "table": "{table}", "on_bad_value": "stop"},
    )
    process = run_to_end(job, *BY_SPARK, "--summary", str(tmp_path / "summary.json"), expect=5)
    last = process.error_text().splitlines()[-1]
    told = json.loads((tmp_path / "summary.json").read_text())
    assert (told["exit_code"], last) == (5, f"tidemark: {told['cause']} Remedy: {told['remedy']}")
    assert {**process.events()[-1], "at": ""} == {**told, "at": "", "event": "failed"}
    assert last.startswith("tidemark: ")
    assert "orders_id_check" in last
    assert "Remedy: " in last
    assert "Traceback" not in process.error_text()
    assert "\tat org.apache.spark" not in process.error_text()
    assert "incubator" not in process.error_text()
    assert postgres_database.query("SELECT * FROM orders") == []
