"""The commands that end with 0, and their output. No test here starts Spark: those are in test_cli_runs.py."""

import json
import re
from pathlib import Path

import pytest

from tests.support.cli import CommandLine, job_of
from tests.support.epochs import run_epochs
from tests.support.jobs import BY_DRIVER, start_tidemark, write_job
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.monitoring.progress import RunSums, read_progress
from tidemark.jobs.spark.stream_source import open_options
from tidemark.state.checkpoint.layout import Checkpoint

pytestmark = pytest.mark.integration


def test_validate_reads_the_file_alone(tidemark: CommandLine, tmp_path: Path) -> None:
    source = {"url": "mysql://cdc:secret@nowhere.invalid/", "tables": ["shop.*"]}
    job = write_job(tmp_path, source=source, sink={"type": "console"})
    ended = tidemark("validate", job)
    warning = (
        "source.tls: without it, connections to nowhere.invalid are not encrypted: others in the network can read rows"
    )
    assert (ended.code, ended.out, ended.err) == (0, f"warning: {warning}\njob.yaml: valid\n", "")


def test_each_command_that_connects_tells_that_nothing_is_encrypted(
    tidemark: CommandLine, shop: Database, postgres_database: Database, tmp_path: Path
) -> None:
    """127.1 is this machine, but no name that says so."""
    url = shop.server.url.replace("127.0.0.1", "127.1")
    sink = {"type": "mirror", "url": postgres_database.url.replace("127.0.0.1", "127.1")}
    job = write_job(tmp_path, source={"url": url, "tables": [f"{shop.name}.orders"]}, sink=sink)
    texts = [f"{name}.tls: without it, connections to 127.1 are not encrypted" for name in ("source", "sink")]
    run = start_tidemark(job, *BY_DRIVER)
    assert run.wait() == 0
    warned = [event["text"] for event in run.events() if event["event"] == "warning"]
    assert [text.partition(":")[0] for text in warned] == ["source.tls", "sink.tls"]
    for command in (["plan", job], ["reconcile", job], ["drop", job, "--yes"]):
        ended = tidemark(*command)
        assert ended.code == 0, ended.err
        assert all(f"warning: {text}" in ended.err for text in texts), command
    assert f"warning: {texts[0]}" in tidemark("init", f"{url}{shop.name}").err
    assert "not encrypted" not in tidemark("status", job).err  # it does not connect


def test_a_query_of_the_stream_source_tells_that_nothing_is_encrypted(
    shop: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = shop.server.url.replace("127.0.0.1", "127.1")
    options = {"url": url, "table": f"{shop.name}.orders", "checkpoint": str(tmp_path / "checkpoint")}
    with open_options(options):
        pass
    assert "source.tls: without it, connections to 127.1 are not encrypted" in capsys.readouterr().out


def test_version_names_tidemark_python_and_pyspark(tidemark: CommandLine) -> None:
    ended = tidemark("--version")
    assert (ended.code, ended.err) == (0, "")
    assert re.fullmatch(r"tidemark \d+\.\d+\.\d+ \(Python 3\.\d+\.\d+, PySpark 4\.\d+\.\d+\)\n", ended.out)


def test_validate_with_connect_tells_what_will_be_made(
    tidemark: CommandLine, shop: Database, postgres_database: Database, tmp_path: Path
) -> None:
    ended = tidemark("validate", job_of(tmp_path, shop), "--connect")
    assert ended.code == 0
    assert "will be written to the new folder" in ended.out
    assert ended.out.endswith("job.yaml: valid\n")
    mirror = {"type": "mirror", "url": postgres_database.url, "table": "copy.{table}"}
    ended = tidemark("validate", job_of(tmp_path, shop, sink=mirror), "--connect")
    assert (ended.code, "schema copy will be created" in ended.out) == (0, True)
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "out").exists()


def test_plan_shows_tables_keys_and_splits_and_makes_nothing(
    tidemark: CommandLine, shop: Database, tmp_path: Path
) -> None:
    ended = tidemark("plan", job_of(tmp_path, shop, "*"))
    assert ended.code == 0
    assert "watermarks by gtid" in ended.out
    (orders,) = [line.split() for line in ended.out.splitlines() if line.startswith(f"{shop.name}.orders ")]
    assert orders[1:4] == ["id", "id", "2"]
    (notes,) = [line for line in ended.out.splitlines() if line.startswith(f"{shop.name}.notes ")]
    assert "none" in notes
    assert "whole table" in notes
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_status_and_checkpoints_of_a_job_on_its_way(tidemark: CommandLine, shop: Database, tmp_path: Path) -> None:
    job = job_of(tmp_path, shop)
    assert run_epochs(job, at_most=1) == ["snapshot"]
    facts = json.loads(tidemark("status", job, "--json").out)
    assert (facts["job"], facts["mode"], facts["phase"]) == ("test-job", "full+incremental", "snapshot")
    assert (facts["committed_epoch"], facts["planned_epoch"]) == (1, 1)
    assert not {"epochs", "epoch_seconds", "changes", "caught_up"} & facts.keys()  # of a run, not of a checkpoint
    (table,) = facts["tables"]
    assert (table["table"], table["complete"], table["splits_done"]) == (f"{shop.name}.orders", False, 2)
    run_epochs(job)
    shop.execute(
        "INSERT INTO orders (note) VALUES ('h'), ('i')",
        "UPDATE orders SET note = 'j' WHERE id = 1",
        "DELETE FROM orders WHERE id IN (2, 3, 4)",
    )
    run_epochs(job)
    facts = json.loads(tidemark("status", job, "--json").out)
    assert (facts["phase"], facts["tables"][0]["rows"], facts["tables"][0]["complete"]) == ("stream", 7, True)
    (table,) = facts["tables"]
    assert (table["inserts"], table["updates"], table["deletes"]) == (2, 1, 3)
    assert (facts["transactions"] >= 3, facts["filtered_changes"], facts["reconnects"]) == (True, 0, 0)
    assert (0 <= facts["lag_seconds"] < 600, facts["lag_bytes"]) == (True, 0)
    assert facts["lag_seconds"] == round(facts["lag_seconds"], 3)
    shown = tidemark("status", job).out
    assert "phase     stream" in shown
    assert f"position  {facts['position']} · " in shown
    assert (" as of " in shown, facts["run"], facts["as_of"][:2]) == (True, None, "20")
    lines = tidemark("checkpoints", job, "list").out.splitlines()
    assert lines[0].split() == ["epoch", "phase", "planned", "(UTC)", "read", "log", "position"]
    times = [" ".join(line.split()[2:4]) for line in lines[1:]]
    assert times == sorted(times)
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", text) for text in times)
    epochs, phases = zip(*(line.split()[:2] for line in lines[1:]), strict=True)
    assert epochs == tuple(str(epoch) for epoch in range(1, len(lines)))
    # Others write to this server's log too: then there is something between the splits' high watermarks.
    order = ["snapshot", "catch_up", "stream"]
    assert (phases[0], *sorted(phases, key=order.index), phases[-1]) == ("snapshot", *phases, "stream")
    assert lines[-1].split()[-1] == facts["position"]
    assert tidemark("checkpoints", job).out.splitlines() == lines


def test_looking_at_a_checkpoint_needs_no_passwords(
    tidemark: CommandLine, shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, shop)
    run_epochs(job)
    known = tidemark("status", job, "--json").out
    for name in ("LOGIN", "HOST", "PORT", "TARGET_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    settings = [
        "source.url=mysql://${LOGIN}@${HOST}:${PORT}/",
        "source.tls={ca: ./missing.pem}",
        "sink={type: mirror, url: 'postgresql://etl:${TARGET_PASSWORD}@h:5432/d', table: '{table}'}",
        "source.mask_key=${file:/run/secrets/missing}",
    ]
    options = ["--substitute", *(word for setting in settings for word in ("--set", setting))]
    told = json.loads(tidemark("status", job, "--json", *options).out)
    assert told | {"lag_seconds": 0} == json.loads(known) | {"lag_seconds": 0}
    assert tidemark("checkpoints", job, "list", *options).code == 0
    assert tidemark("report", job, "-o", tmp_path / "report.html", *options).code == 0
    assert tidemark("validate", job, *options).code == 2


def test_a_run_has_caught_up_once_it_read_what_its_plan_saw(shop: Database, tmp_path: Path) -> None:
    path = job_of(tmp_path, shop)
    job = load_job_file(path)
    checkpoint = Checkpoint.at(job.checkpoint)

    def caught_up(epochs: int) -> bool:
        state = checkpoint.job_state()
        assert state is not None
        progress = read_progress(checkpoint, job, state, checkpoint.committed_epoch(), RunSums(epochs=epochs))
        assert progress is not None
        return progress.caught_up

    run_epochs(path, at_most=1)
    assert not caught_up(1)
    for _ in range(20):  # other tests write to the server's log, too: after the run's goal was set, before it planned
        run_epochs(path)
        if caught_up(1):
            break
    assert caught_up(1)
    assert not caught_up(0)  # what came since the last run is not known yet


def test_status_tells_that_a_copy_is_done(tidemark: CommandLine, shop: Database, tmp_path: Path) -> None:
    job = job_of(tmp_path, shop, mode="full")
    run_epochs(job)
    assert json.loads(tidemark("status", job, "--json").out)["phase"] == "done"
