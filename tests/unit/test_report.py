"""The report's page: what it says, that no name or secret of a job can do harm in it, and that it stays small."""

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from tests.support.report_facts import HOSTILE, START, as_of, busy_facts, job_file, unfinished
from tidemark.conf.redaction import forget_secrets
from tidemark.jobs.report.facts import LogScale, ReportFacts, TableFacts
from tidemark.jobs.report.page import MAX_TABLES, duration, render, size
from tidemark.jobs.report.records import split_records
from tidemark.jobs.report.write import write_report
from tidemark.state.checkpoint.history import EpochHistory, EventHistory, JobEvent, RunRecord, SplitHistory
from tidemark.state.errors import CheckpointError, JobFileError
from tidemark.state.position import WalPosition
from tidemark.state.run_state import RunState


@pytest.fixture(autouse=True)
def _secrets_of_one_test_only() -> Iterator[None]:
    yield
    forget_secrets()


def page_of(facts: ReportFacts, password: str = "pa55word-of-the-source") -> str:
    return render(job_file(password), facts, as_of(facts) if facts.epochs.recent else 0)


def specs_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    specs = json.loads(found[1])
    assert isinstance(specs, dict)
    return specs


def text_of(page: str) -> str:
    """The page's text before the scripts."""
    return unescape(re.sub(r"<[^>]*>", " ", page.partition("</style>")[2].partition("<script")[0]))


def test_the_page_says_where_the_job_stands() -> None:
    text = text_of(page_of(busy_facts("orders", "customers")))
    for part in (
        "shop-mirror",
        "following the log",
        "mysql://cdc:***@shop-db",
        "watermarks by gtid",
        "2,940,000",
        "3.4 s",
    ):
        assert part in text
    assert "2 of 2 are copied" in text
    assert "The disk of the target is full." in text
    assert "copying" in text_of(page_of(unfinished(busy_facts("orders"))))


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (RunState.FOLLOWING, ""),
        (RunState.PAUSED, " · paused"),
        (RunState.WAITING, " · waiting"),
        (RunState.STOPPING, " · stopping"),
    ],
)
def test_the_page_says_in_which_state_a_run_is(state: RunState, told: str) -> None:
    facts = busy_facts()
    at_us = as_of(facts)
    page = render(job_file("p"), replace(facts, run=RunRecord("etl-1", "", 77, at_us, at_us, state=state)), at_us)
    shown = re.search(r'id="phase">([^<]*)<', page)
    assert shown is not None
    assert shown[1] == f"following the log{told}"


def test_names_and_texts_of_others_are_only_text() -> None:
    facts = busy_facts(HOSTILE, "orders")
    event = JobEvent(as_of(facts), HOSTILE, (("text", f"</script>{HOSTILE}"),))
    page = page_of(replace(facts, events=facts.events.plus(event), notes=(HOSTILE,)))
    assert HOSTILE not in page
    assert HOSTILE in text_of(page)
    assert page.count("<script") == page.count("</script") == 3
    assert HOSTILE in json.dumps(specs_of(page), ensure_ascii=False).replace('\\"', '"')


@pytest.mark.parametrize("password", ["pa55word-of-the-source", "class", "table"])
def test_secrets_are_masked_and_leave_the_page_whole(password: str) -> None:
    facts = busy_facts("orders")
    events = EventHistory().plus(JobEvent(as_of(facts), "error", (("text", f"login {password} failed"),)))
    page = page_of(replace(facts, events=events), password)
    assert "login *** failed" in page
    assert 'class="tiles"' in page
    assert "specs.splits" in page
    assert len(re.findall("pa55word", page)) == 0


def test_a_page_before_the_first_epoch() -> None:
    facts = busy_facts("orders")
    page = page_of(replace(facts, progress=None, epochs=EpochHistory(), splits=SplitHistory(), events=EventHistory()))
    assert "none is planned yet" in text_of(page)
    assert (specs_of(page)["splits"], specs_of(page)["timelines"]) == (None, {})


def test_a_page_of_many_splits_tables_and_epochs_stays_small_and_says_so() -> None:
    facts = busy_facts("orders", splits=20_000, epochs=5_000)
    many = tuple(
        TableFacts(replace(facts.tables[0].progress, table=f"shop.t{i}", complete=i != 777), ("id",), ("id",))
        for i in range(2_000)
    )
    page = page_of(replace(facts, tables=many))
    assert len(page) < 2_000_000
    assert "neighbouring splits are drawn as one column" in page
    assert "epochs are drawn as one" in page
    assert f"{2_000 - MAX_TABLES:,} more tables" in page
    assert "shop.t777" in text_of(page), "tables that are not copied yet come first"
    timelines = specs_of(page)["timelines"]
    assert isinstance(timelines, dict)
    assert list(timelines) == ["recent", "whole"]


def test_splits_stand_in_the_keys_order_between_their_watermarks() -> None:
    records, _ = split_records(busy_facts("orders", splits=10))
    assert [record["left"] for record in records] == list(range(10))
    assert all(0 <= record["low"] <= record["high"] <= record["top"] for record in records)
    assert [record["range"] for record in records[:2]] == ["1", "2"]
    assert records[-1]["gap"] == 0
    assert records[3]["high_text"].startswith("binlog.000041:")


def test_places_in_the_log() -> None:
    state = busy_facts("orders").state
    scale = LogScale(state, [(41, 2_000_000), (43, 100)])
    assert scale.bytes_since_start(START.order) == 0
    assert scale.bytes_since_start((41, 1_200_100)) == 100
    assert scale.bytes_since_start((43, 50)) == 800_050
    assert scale.text((43, 50)) == "binlog.000043:50"
    postgres = LogScale(replace(state, start=WalPosition(0x1_0000_0000)), [])
    assert (postgres.bytes_since_start((0x1_0000_0010,)), postgres.text((0x1_0000_0010,))) == (16, "1/10")


def test_texts_for_people() -> None:
    assert [duration(s) for s in (0.04, 59.9, 185, 7800, 266_400)] == [
        "0.0 s",
        "59.9 s",
        "3 min 5 s",
        "2 h 10 min",
        "3 d 2 h",
    ]
    assert [size(n) for n in (12, 3_400, 5_600_000, 7e15)] == ["12 B", "3.4 kB", "5.6 MB", "7,000.0 TB"]


def test_without_a_checkpoint_there_is_a_clear_error(tmp_path: Path) -> None:
    job = job_file().model_copy(update={"checkpoint": str(tmp_path / "none")})
    with pytest.raises(CheckpointError, match=r"has no checkpoint.*tidemark run"):
        write_report(job, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_the_way_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidemark.jobs.report.page")
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(JobFileError, match=r"\(vl_convert\).*pip install 'tidemark-cdc\[report\]'") as caught:
        write_report(job_file(), tmp_path / "report.html")
    assert caught.value.exit_code == 2
