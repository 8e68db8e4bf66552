"""`tidemark report FOLDER`: the catalogue of many jobs, broken ones and never started ones among them."""

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from scripts.browser import find_browser, visit
from tests.support.cli import CommandLine
from tests.support.epochs import run_epochs
from tests.support.jobs import write_job
from tests.support.servers import Database
from tidemark.jobs.monitoring.run_record import RunRecorder
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import LogPositionLostError
from tidemark.state.job_state import Left

pytestmark = pytest.mark.integration


class Table(HTMLParser):
    """The rows of the page's table, and its links. Fails at an element that is not closed, or closed twice."""

    VOID = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.VOID:
            return
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag == "a":
            self.links.append(dict(attrs)["href"] or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] += f" {data}" if "small" in self._open else data


def job_in(folder: Path, name: str, database: Database, table: str, **changes: object) -> Path:
    """A job file `name`.yaml with a password that only runs need, and its checkpoint."""
    server = database.server
    path = write_job(
        folder,
        job=f"copy-of-{name}",
        checkpoint=f"./checkpoints/{name}",
        source={"url": server.url, "tables": [f"{database.name}.{table}"]},
        sink={"type": "files", "path": str(folder / "out" / name)},
        **changes,
    )
    return path.rename(folder / f"{name}.yaml")


def hide_password(path: Path) -> None:
    job = yaml.safe_load(path.read_text())
    job["source"]["url"] = "mysql://cdc:${NOT_SET_HERE}@db/"
    path.write_text(yaml.safe_dump(job))


@pytest.fixture
def many(shop: Database, tmp_path: Path) -> Path:
    """Jobs that ended, failed, run, were never started, or can't be read."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    ended = job_in(folder, "ended", shop, "orders")
    run_epochs(ended)
    record(folder, "ended", None)
    failed = job_in(folder, "failed", shop, "notes")
    run_epochs(failed)
    record(folder, "failed", LogPositionLostError("The log <b>&\"' is gone.", "Start over with pa55word."))
    parked = job_in(folder, "parked", shop, "*")
    run_epochs(parked)
    record(folder, "parked", None)
    checkpoint = Checkpoint.at(str(folder / "checkpoints" / "parked"))
    state = checkpoint.job_state()
    assert state is not None
    checkpoint.create_left(state, (Left(state.schemas[0].table, state.schemas[0].version, "A value does not fit.", 1),))
    for path in (ended, failed, parked):
        hide_password(path)
    hide_password(job_in(folder, "new", shop, "orders"))
    (folder / "typo.yaml").write_text("job: x\nsuorce: {}\n")
    (folder / "damaged.yml").write_bytes(job_in(folder, "damaged", shop, "orders").read_bytes())
    (folder / "damaged.yaml").unlink()
    (folder / "checkpoints" / "damaged").mkdir()
    (folder / "checkpoints" / "damaged" / "job").write_text("{}")
    (folder / "notes.txt").write_text("no job")
    return folder


def record(folder: Path, name: str, error: Exception | None) -> None:
    recorder = RunRecorder(Checkpoint.at(str(folder / "checkpoints" / name)))
    try:
        with recorder.recording():
            recorder.begin()
            if error is not None:
                raise error
    except LogPositionLostError:
        pass


def test_a_folder_is_drawn_with_all_its_jobs(tidemark: CommandLine, many: Path, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    ended = tidemark("report", many, "-o", page)
    assert (ended.code, ended.out) == (0, f"Wrote {page} (6 jobs).\n")
    table = Table(page.read_text())
    rows = {row[0].split()[0]: row for row in table.rows[1:]}
    assert list(rows) == ["copy-of-damaged", "copy-of-failed", "typo", "copy-of-parked", "copy-of-new", "copy-of-ended"]
    state = {name: row[1].split()[0] for name, row in rows.items()}
    assert state == {
        "copy-of-failed": "stopped",
        "copy-of-damaged": "not",
        "typo": "not",
        "copy-of-new": "never",
        "copy-of-ended": "ended",
        "copy-of-parked": "ended",
    }
    assert rows["copy-of-failed"][7:] == ["4", "The log <b>&\"' is gone. Remedy: Start over with pa55word."]
    assert rows["copy-of-ended"][2:6] == ["following the log", "1", "1", "0"]
    assert rows["copy-of-ended"][7:] == ["0", ""]
    assert rows["copy-of-parked"][2:6] == ["following the log", "2", "1", "1"]
    assert "typo.yaml has 4 problems" in rows["typo"][8]
    assert str(many / "typo.yaml") in rows["typo"][0]
    assert table.links == ["index-jobs/failed.html", "index-jobs/parked.html", "index-jobs/ended.html"]
    for link in table.links:
        assert "chart-splits" in (tmp_path / link).read_text()
    tiles = dict(re.findall(r'<dd id="([a-z-]+)"[^>]*>([^<]*)', unescape(page.read_text())))
    assert tiles == {"jobs": "6", "running": "0", "in-trouble": "4", "parked-tables": "1"}
    assert not list(tmp_path.rglob("*.part"))


def test_a_browser_shows_the_catalogue_without_errors(tidemark: CommandLine, many: Path, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    assert tidemark("report", many, "-o", page).code == 0
    seen = visit(find_browser(), page)
    assert (seen.console, seen.requests) == ((), ())
    assert "copy-of-new" in seen.dom


def test_a_folder_without_jobs_and_a_page_that_cant_be_written_are_refused(
    tidemark: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    ended = tidemark("report", tmp_path / "empty")
    assert (ended.code, "has no job files" in ended.last_line) == (2, True)
    (tmp_path / "empty" / "a.yaml").write_text("job: x\n")
    ended = tidemark("report", tmp_path / "empty", "-o", tmp_path / "none" / "index.html")
    assert (ended.code, "can't be created" in ended.last_line) == (2, True)
