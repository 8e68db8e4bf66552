"""`tidemark report` of real jobs, and its page in a real browser."""

import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from scripts.browser import find_browser, take_screenshot, visit
from tests.support.cli import CommandLine, job_of
from tests.support.epochs import run_epochs
from tests.support.report_facts import HOSTILE, as_of, busy_facts, job_file
from tests.support.servers import Database
from tidemark.conf.redaction import forget_secrets
from tidemark.jobs.report.page import render
from tidemark.state.checkpoint.history import JobEvent

pytestmark = pytest.mark.integration


def tile(page: str, name: str) -> str:
    found = re.search(rf'<dd id="{name}"[^>]*>([^<]*)', page)
    assert found is not None
    return unescape(found[1])


def test_a_job_is_shown_before_between_and_after_its_epochs(
    tidemark: CommandLine, shop: Database, tmp_path: Path
) -> None:
    job, output = job_of(tmp_path, shop), tmp_path / "report.html"
    ended = tidemark("report", job, "-o", output)
    assert (ended.code, "has no checkpoint" in ended.last_line) == (1, True)
    assert run_epochs(job, at_most=1) == ["snapshot"]
    assert tidemark("report", job, "-o", output).code == 0
    page = output.read_text()
    assert (tile(page, "rows"), tile(page, "splits-done"), tile(page, "epochs")) == ("3", "2", "1")
    assert 'class="phase snapshot"' in page
    run_epochs(job)
    shop.execute("INSERT INTO orders (note) VALUES ('h')", "DELETE FROM orders WHERE id < 3")
    run_epochs(job)
    assert tidemark("report", job, "-o", output).code == 0
    page = output.read_text()
    assert (tile(page, "rows"), tile(page, "changes"), tile(page, "lag").endswith(" s")) == ("7", "3", True)
    assert "following the log" in page
    (tmp_path / "checkpoint" / "history").rename(tmp_path / "lost")
    assert tidemark("report", job, "-o", output).code == 0
    page = output.read_text()
    assert (tile(page, "rows"), tile(page, "changes")) == ("7", "3")
    assert "None are kept." in page
    ended = tidemark("report", job, "-o", tmp_path / "no folder" / "report.html")
    assert (ended.code, "can't be written" in ended.last_line) == (2, True)


def test_a_browser_draws_the_page_without_errors_and_asks_for_nothing(tmp_path: Path) -> None:
    facts, page = busy_facts("orders", HOSTILE, splits=40, epochs=400), tmp_path / "report.html"
    page.write_text(render(job_file(), facts, as_of(facts)))
    forget_secrets()
    browser = find_browser()
    seen = visit(browser, page)
    assert (seen.console, seen.requests) == ((), ())
    assert 'data-drawn="yes"' in seen.dom
    assert (tile(seen.dom, "rows"), tile(seen.dom, "epochs")) == ("2,450,000", "400")
    charts = re.findall(r'id="chart-(\w+)"', seen.dom)
    assert charts == ["splits", "events", "rate", "lag", "behind", "seconds"]
    assert seen.dom.count('aria-roledescription="rect mark"') >= 3 * 40
    assert "binlog.000041" in seen.dom
    assert HOSTILE not in seen.dom
    pictures = [tmp_path / "light.png", tmp_path / "dark.png"]
    for picture in pictures:
        take_screenshot(browser, page, picture, dark=picture.stem == "dark")
    light, dark = (picture.read_bytes() for picture in pictures)
    assert light[:8] == dark[:8] == b"\x89PNG\r\n\x1a\n"
    assert light != dark


POINT = """<script>
new MutationObserver(() => {
  const told = [];
  for (const mark of document.querySelectorAll(".mark-rect path, .mark-symbol path")) {
    const box = mark.getBoundingClientRect();
    const at = { bubbles: true, clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 };
    mark.dispatchEvent(new PointerEvent("pointermove", at));
    told.push(document.getElementById("vg-tooltip-element").innerText);
  }
  document.body.append(Object.assign(document.createElement("pre"), { id: "told", textContent: told.join("\\n") }));
}).observe(document.documentElement, { attributeFilter: ["data-drawn"] });
</script>
"""
DATA = '<script type="application/json"'


def test_what_is_pointed_at_tells_its_numbers_and_texts_as_text(tmp_path: Path) -> None:
    facts, page = busy_facts("orders", splits=5, epochs=30), tmp_path / "report.html"
    warning = JobEvent(facts.epochs.recent[3].begin_us, "warning", (("text", HOSTILE),))
    facts = replace(facts, events=facts.events.plus(warning))
    page.write_text(render(job_file(), facts, as_of(facts)).replace(DATA, POINT + DATA, 1))
    forget_secrets()
    seen = visit(find_browser(), page)
    assert seen.console == ()
    told = unescape(seen.dom.partition('<pre id="told">')[2].partition("</pre>")[0])
    assert re.search(r"split\s+2\b", told)
    assert re.search(r"high\s+binlog\.000041:\d+", told)
    assert re.search(r"from\s+2026-09-21 14:1", told)
    assert HOSTILE in told
    assert "NaN" not in told


def test_a_browser_draws_a_job_of_one_epoch(tmp_path: Path) -> None:
    facts, page = busy_facts("orders", splits=1, epochs=1), tmp_path / "report.html"
    page.write_text(render(job_file(), facts, as_of(facts)))
    forget_secrets()
    seen = visit(find_browser(), page)
    assert (seen.console, 'data-drawn="yes"' in seen.dom) == ((), True)
    assert re.findall(r'id="chart-(\w+)"', seen.dom) == ["splits", "events", "rate", "behind", "seconds"]


def test_the_browser_tells_of_errors_and_requests(tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://127.0.0.1:9/x.png"><script>console.error("boo"); nothing()</script>')
    seen = visit(find_browser(), page)
    assert len([line for line in seen.console if "boo" in line or "nothing is not defined" in line]) == 2
    assert "http://127.0.0.1:9/x.png" in seen.requests
