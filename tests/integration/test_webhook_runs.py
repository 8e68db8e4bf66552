"""`notify.webhook` of real runs: failures and parked tables arrive, and a receiver that hangs changes nothing."""

import json
import time
from pathlib import Path

import pytest

from tests.support.cli import CommandLine
from tests.support.jobs import BY_DRIVER, running, source_of, write_job
from tests.support.receiver import HANG, receiving
from tests.support.servers import Database
from tidemark.jobs.monitoring import webhook

pytestmark = pytest.mark.integration


def mirror_of(folder: Path, source: Database, target: Database, url: str) -> Path:
    """A job with a table whose value the target can't hold, and another one."""
    source.execute(
        "CREATE TABLE readings (id INT PRIMARY KEY, v VARCHAR(9))",
        "INSERT INTO readings VALUES (1, 'a\\0b')",
        "CREATE TABLE notes (id INT PRIMARY KEY)",
        "INSERT INTO notes VALUES (1)",
    )
    section = source_of(source, on_table_error="park")
    sink = {"type": "mirror", "url": target.url, "table": "copy_{table}"}
    return write_job(folder, source=section, sink=sink, notify={"webhook": url})


def test_a_parked_table_is_posted_at_each_run_and_the_job_goes_on(
    tidemark: CommandLine, mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    token = "tok3nOfTheReceiver"
    with receiving(path=f"/services/{token}") as receiver:
        job = mirror_of(tmp_path, mysql_database, postgres_database, receiver.url)
        first = tidemark("run", job, *BY_DRIVER)
        mysql_database.execute("INSERT INTO notes VALUES (2)")
        second = tidemark("run", job, *BY_DRIVER)
    table = f"{mysql_database.name}.readings"
    assert (first.code, second.code) == (9, 9)
    assert [(body["event"], body["job"], body["table"]) for body in receiver.bodies] == [
        ("parked", "test-job", table)
    ] * 2
    assert "tidemark signal" in receiver.bodies[0]["text"]
    assert [row[0] for row in postgres_database.query("SELECT id FROM copy_notes ORDER BY id")] == [1, 2]
    kept = "".join(path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file())
    assert not any(token in text for text in (first.out, first.err, second.out, second.err, kept))


@pytest.mark.parametrize("status", [HANG, 500])
def test_a_receiver_that_fails_changes_neither_the_copy_nor_the_exit_code(
    tidemark: CommandLine,
    mysql_database: Database,
    postgres_database: Database,
    tmp_path: Path,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(webhook, "ATTEMPT_SECONDS", 1.0)
    monkeypatch.setattr(webhook, "RETRY_DELAYS_SECONDS", (0.2, 0.6))
    monkeypatch.setattr(webhook, "FAREWELL_SECONDS", 2.0)
    with receiving(status) as receiver:
        job = mirror_of(tmp_path, mysql_database, postgres_database, receiver.url)
        began = time.monotonic()
        ended = tidemark("run", job, *BY_DRIVER)
        seconds = time.monotonic() - began
    assert ended.code == 9
    assert receiver.events[0] == "parked"
    assert postgres_database.query("SELECT id FROM copy_notes") == [(1,)]
    events = ended.events()
    assert events[-1]["event"] == "failed"
    told = [event["text"] for event in events if event["event"] == "warning" and "notify.webhook" in event["text"]]
    assert len(told) == 1
    assert json.dumps(events).count(receiver.url) == 0
    assert seconds < webhook.FAREWELL_SECONDS + 50


def test_a_run_that_fails_at_its_start_is_posted(tidemark: CommandLine, tmp_path: Path) -> None:
    with receiving() as receiver:
        source = {"url": "mysql://cdc:secret@127.0.0.1:1/", "tables": ["shop.*"]}
        settings = {
            "source": source,
            "sink": {"type": "console"},
            "notify": {"webhook": receiver.url, "on": ["failed"]},
        }
        ended = tidemark("run", write_job(tmp_path, **settings))
    (body,) = receiver.bodies
    assert (ended.code, body["event"], body["exit_code"]) == (7, "failed", 7)
    assert f"tidemark: {body['text']}" == ended.last_line
    assert json.loads(ended.out.splitlines()[-1])["event"] == "failed"


def test_a_table_that_is_parked_while_the_job_runs_on_is_posted_at_once(
    mysql_database: Database, postgres_database: Database, tmp_path: Path
) -> None:
    with receiving(500, 200) as receiver:
        job = mirror_of(tmp_path, mysql_database, postgres_database, receiver.url)
        mysql_database.execute("DELETE FROM readings")
        with running(job, *BY_DRIVER, "--set", "trigger=300ms") as process:
            process.wait_until(lambda: any(event.get("phase") == "stream" for event in process.events()))
            assert receiver.events == []
            mysql_database.execute("INSERT INTO readings VALUES (2, 'a\\0b')")
            process.wait_until(lambda: receiver.events == ["parked", "parked"])  # the first answer was 500
            mysql_database.execute("INSERT INTO notes VALUES (2)")
            process.wait_until(lambda: postgres_database.query("SELECT count(*) FROM copy_notes") == [(2,)])
            assert process.popen.poll() is None
            assert receiver.events == ["parked", "parked"]
    assert receiver.bodies[0] == receiver.bodies[1]
