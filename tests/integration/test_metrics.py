"""A running job seen from outside: its metrics, its history, its report, and what Spark is told."""

import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.cli import CommandLine
from tests.support.jobs import SPARK, Process, running, write_job
from tests.support.servers import Database
from tidemark.jobs.monitoring.history import Kept
from tidemark.state.checkpoint.codec import EPOCHS
from tidemark.state.checkpoint.history import EpochStretch
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def scrape(process: Process) -> dict[tuple[str, ...], float]:
    """Scrapes the metrics endpoint. Returns (name, table or phase or "", kind or "") → value."""
    (url,) = [event["url"] for event in process.events() if event["event"] == "metrics"]
    with urllib.request.urlopen(url, timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    assert {sample.labels["job"] for sample in samples} <= {"test-job"}
    return {
        (
            s.name.removeprefix("tidemark_"),
            s.labels.get("table", s.labels.get("phase", "")),
            s.labels.get("kind", ""),
        ): s.value
        for s in samples
    }


def test_a_running_job_is_seen_by_prometheus_status_and_spark(
    tidemark: CommandLine, mysql_database: Database, tmp_path: Path
) -> None:
    mysql_database.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, kind INT)",
        "INSERT INTO orders VALUES (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)",
    )
    (tmp_path / "events").mkdir()
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (tmp_path / "events").as_uri(),
    }
    job = write_job(
        tmp_path,
        trigger="1s",
        metrics={"port": 0},
        source={"url": mysql_database.server.url, "tables": [f"{mysql_database.name}.*"]},
        snapshot={"split_rows": 2, "parallelism": 2, "driver_rows": 0},
        sink={"type": "files", "path": str(tmp_path / "out")},
        spark={**SPARK, "conf": {**SPARK["conf"], **logged}},  # type: ignore[dict-item]
    )
    with running(job) as process:
        process.wait_until(lambda: any(e.get("phase") == "stream" for e in process.events()))
        process.wait_until(lambda: any(e["event"] == "epoch" and e["caught_up"] for e in process.events()))
        mysql_database.execute(
            "INSERT INTO orders VALUES (6, 1), (7, 1)",
            "UPDATE orders SET kind = 2 WHERE id < 4",
            "DELETE FROM orders WHERE id = 5",
        )
        process.wait_until(lambda: any(e.get("changes") == 6 for e in process.events()))
        process.wait_until(lambda: scrape(process)["caught_up", "", ""] == 1)
        found = scrape(process)
        process.wait_until(lambda: sum(epoch.changes for epoch in stream_epochs(tmp_path)) == 6)
        running_page = reported(tidemark, job)
        assert "run       running since " in tidemark("status", job).out
        process.kill()
        assert "run       DEAD, last seen " in tidemark("status", job).out
    assert reported(tidemark, job) == running_page == {"rows": "5", "changes": "6", "splits-done": "3"}
    table = f"{mysql_database.name}.orders"
    assert found["phase", "stream", ""] == 1
    assert [found["phase", phase, ""] for phase in ("snapshot", "catch_up", "done")] == [0, 0, 0]
    assert (found["table_rows_total", table, ""], found["table_splits_done", table, ""]) == (5, 3)
    kinds = [found["table_changes_total", table, kind] for kind in ("insert", "update", "delete")]
    assert kinds == [2, 3, 1]
    assert min(found["lag_seconds", "", ""], found["lag_bytes", "", ""]) >= 0  # others write to the server's log, too
    assert found["transactions_total", "", ""] >= 3
    epochs = found["epochs_total", "", ""]
    assert (found["epoch_seconds_count", "", ""], found["epoch_seconds_sum", "", ""] > 0) == (epochs, True)

    kept = stream_epochs(tmp_path)
    assert sum(epoch.changes for epoch in kept) == 6
    assert all(epoch.log_bytes > 0 and epoch.seconds > 0 for epoch in kept if epoch.measured)

    described = {line for line in job_descriptions(tmp_path / "events") if line.startswith("tidemark test-job: epoch ")}
    assert "tidemark test-job: epoch 1" in described


def reported(tidemark: CommandLine, job: Path) -> dict[str, str]:
    """The numbers of `tidemark report`."""
    page = job.with_name("report.html")
    assert tidemark("report", job, "-o", page).code == 0
    tiles = dict(re.findall(r'<dd id="([a-z-]+)"[^>]*>([^<]*)', page.read_text()))
    return {name: tiles[name] for name in ("rows", "changes", "splits-done")}


def stream_epochs(folder: Path) -> list[EpochStretch]:
    kept = Kept(Checkpoint.at(str(folder / "checkpoint")).store, EPOCHS).load()
    return [] if kept is None else [epoch for epoch in kept.recent if epoch.phase == "stream"]


def job_descriptions(folder: Path) -> list[str]:
    """The descriptions of Spark's jobs, as its event log has them."""
    lines = [line for path in folder.rglob("events*") if path.is_file() for line in path.read_text().splitlines()]
    starts = [json.loads(line) for line in lines if '"SparkListenerJobStart"' in line]
    return [start["Properties"].get("spark.job.description", "") for start in starts]


def test_a_port_that_is_taken_ends_the_run_at_its_start(tidemark: CommandLine, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        source = {"url": "mysql://cdc:secret@127.0.0.1:1/", "tables": ["shop.*"]}
        job = write_job(tmp_path, source=source, metrics={"port": port}, sink={"type": "console"})
        ended = tidemark("run", job)
    assert (ended.code, f"127.0.0.1 port {port} can't be listened on" in ended.last_line) == (2, True)
    assert not (tmp_path / "checkpoint").exists()
