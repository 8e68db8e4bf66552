"""A job's Spark session shows others on the machine and readers of its event log no secrets, and lets nobody else in."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.jobs import SPARK, Process, start_process, write_job
from tests.support.processes import command_lines, listening_addresses

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

AZURE_KEY = "azure-Gk8x/aa+bb=="
S3_KEY = "s3a-Zz71: \\u0041=#!kk"
STORE_PASSWORD = "store-Qq35"
REPOSITORY_PASSWORD = "repository-Pp92"
SECRETS = (AZURE_KEY, "s3a-Zz71", STORE_PASSWORD, REPOSITORY_PASSWORD)
OPEN = """
import sys, time
from pathlib import Path
from tidemark.conf.load import load_job_file
from tidemark.jobs.spark.session import open_session, run_a_task
session = open_session(load_job_file(Path(sys.argv[1])), None)
run_a_task(session)
conf, hadoop = session.sparkContext.getConf(), session.sparkContext._jsc.hadoopConfiguration()
system = session.sparkContext.getSystemProperty
print(hadoop.get("fs.s3a.secret.key"), conf.get("spark.driver.memory"), system("store.password"), system("quoted"), sep="|")
print("open", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, set[str]]]:
    """A session in a process of its own, and all command lines of its processes since its start."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "events").mkdir()
    options = f'{SPARK["conf"]["spark.driver.extraJavaOptions"]} -Dstore.password={STORE_PASSWORD} "-Dquoted=two words"'
    conf = SPARK["conf"] | {
        "spark.driver.extraJavaOptions": options,
        "spark.ui.enabled": "true",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(folder / "events"),
        "spark.hadoop.fs.s3a.secret.key": S3_KEY,
        "spark.hadoop.fs.azure.account.key.shop.blob.core.windows.net": AZURE_KEY,
        "spark.jars.repositories": f"https://reader:{REPOSITORY_PASSWORD}@repository.invalid/maven",
    }
    job = write_job(
        folder,
        source={"url": "mysql://nobody:nothing@localhost/", "tables": ["a.b"]},
        sink={"type": "files", "path": "./out"},
        spark={"master": "local[2]", "conf": conf},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPARK_LOCAL_IP", raising=False)
        process = start_process(folder, sys.executable, "-c", OPEN, str(job), environment={"TMPDIR": str(folder)})
    seen: set[str] = set()
    done = threading.Event()
    watching = threading.Thread(target=_watch, args=(process.popen.pid, seen, done))
    watching.start()
    try:
        process.wait_until(lambda: "open" in process.out.read_text())
        yield process, seen
    finally:
        done.set()
        watching.join()
        process.kill()


def _watch(group: int, seen: set[str], done: threading.Event) -> None:
    while not done.wait(0.05):
        seen.update(command_lines(group).values())


@pytest.mark.pitfall(120)
def test_no_command_line_has_a_password(opened: tuple[Process, set[str]]) -> None:
    _, seen = opened
    assert any("SparkSubmit" in line for line in seen)
    assert [secret for secret in SECRETS if any(secret in line for line in seen)] == []


@pytest.mark.pitfall(120)
def test_the_session_has_its_settings_nevertheless(opened: tuple[Process, set[str]]) -> None:
    process, _ = opened
    assert process.out.read_text().splitlines()[0] == f"{S3_KEY}|700m|{STORE_PASSWORD}|two words"


@pytest.mark.pitfall(120)
def test_no_file_with_passwords_is_left(opened: tuple[Process, set[str]]) -> None:
    process, _ = opened
    ours = {process.out, process.err, process.out.with_name("job.yaml")}  # Spark prints the repositories
    left = [path for path in process.out.parent.rglob("*") if path.is_file() and path not in ours]
    assert any("events" in path.parts for path in left)
    assert [str(path) for path in left if any(secret in path.read_text(errors="replace") for secret in SECRETS)] == []


@pytest.mark.pitfall(120)
def test_the_event_log_has_no_passwords(opened: tuple[Process, set[str]]) -> None:
    process, _ = opened
    text = "".join(path.read_text() for path in (process.out.parent / "events").rglob("*") if path.is_file())
    assert "fs.azure.account.key.shop" in text
    assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.pitfall(121)
def test_a_local_session_listens_on_loopback_only(opened: tuple[Process, set[str]]) -> None:
    process, _ = opened
    found = listening_addresses(process.popen.pid)
    assert len(found) >= 3  # driver, blocks, web pages
    assert [address for address in found if not address.is_loopback] == []


@pytest.mark.pitfall(121)
def test_addresses_are_found_that_are_not_loopback(tmp_path: Path) -> None:
    listen = "import socket, time; s = socket.create_server(('0.0.0.0', 0)); print('open', flush=True); time.sleep(60)"
    process = start_process(tmp_path, sys.executable, "-c", listen)
    try:
        process.wait_until(lambda: "open" in process.out.read_text())
        assert [address.is_loopback for address in listening_addresses(process.popen.pid)] == [False]
    finally:
        process.kill()
