"""The job file's policies for values that a target can't hold."""

from pathlib import Path

import pytest

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.sink import MirrorSink
from tidemark.jobs.sinks import make_sink
from tidemark.sinks.mirror.sink import MirrorSink as Mirror
from tidemark.state.table import TableId

MIRROR = SMALL.replace("  type: files\n  path: /out\n", "  type: mirror\n  url: postgresql://u:pa55word@h/d\n")


def test_policies_are_read_and_reach_the_sink(tmp_path: Path) -> None:
    job = load_text(tmp_path, MIRROR + "  on_bad_value: null\n  on_bad_value_in: {shop.a: {x: text, y: null}}\n")
    assert isinstance(job.sink, MirrorSink)
    sink = make_sink(job)
    assert isinstance(sink, Mirror)
    table = TableId("shop", "a")
    assert [sink.policies.of(table, column) for column in "xyz"] == ["text", "null", "null"]


def test_the_default_is_to_park_the_table(tmp_path: Path) -> None:
    sink = make_sink(load_text(tmp_path, MIRROR))
    assert isinstance(sink, Mirror)
    assert sink.policies.of(TableId("shop", "a"), "x") == "park"
    assert load_text(tmp_path, SMALL).sink.on_bad_value == "park"


@pytest.mark.parametrize("policy", ["text", "reject"])
def test_other_sinks_have_no_text_and_no_rejects(tmp_path: Path, policy: str) -> None:
    assert load_text(tmp_path, SMALL + "  on_bad_value: null\n").sink.on_bad_value == "null"
    (problem,) = problems_of(tmp_path, SMALL + f"  on_bad_value_in: {{shop.a: {{x: {policy}}}}}\n")
    assert f"{policy} is only for sink.type mirror. Allowed: park, stop, null" in problem


def test_unknown_policies_are_refused(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, MIRROR + "  on_bad_value_in: {shop.a: {x: drop}}\n")
    assert "sink.on_bad_value_in" in problem
    assert "park | stop | null | text | reject" in problem
