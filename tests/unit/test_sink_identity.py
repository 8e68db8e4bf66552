"""The sink identity that a job keeps: enough to notice another copy, no secret, and no harmless spelling."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.change_parts import ORDERS
from tests.support.jobs import write_job
from tidemark.conf.load import load_job_file
from tidemark.jobs.sinks import published_format, sink_identity, sink_needs
from tidemark.state.checkpoint.codec import SINK
from tidemark.state.checkpoint.layout import Checkpoint
from tidemark.state.errors import CheckpointError
from tidemark.state.sink_identity import SinkIdentity

pytestmark = pytest.mark.pitfall(91)

MIRROR = {"type": "mirror", "url": "postgresql://etl:pa55word@wh.example:5432/analytics"}


def identity(folder: Path, **sink: Any) -> SinkIdentity:
    source = {"url": "mysql://cdc:secret@nowhere.invalid/", "tables": ["shop.*"]}
    return sink_identity(load_job_file(write_job(folder, source=source, sink=sink)).sink)


def test_it_holds_no_password(tmp_path: Path) -> None:
    data = SINK.encode(identity(tmp_path, **MIRROR))
    assert b"pa55word" not in data
    assert json.loads(data.splitlines()[1])["location"]["value"] == "postgresql://wh.example:5432/analytics"
    assert SINK.decode(data, "sink") == identity(tmp_path, **MIRROR)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://etl:another@wh.example:5432/analytics",
        "postgresql://somebody@WH.example/analytics",
    ],
)
def test_logins_and_spellings_don_t_count(tmp_path: Path, url: str) -> None:
    assert identity(tmp_path, **MIRROR | {"url": url}) == identity(tmp_path, **MIRROR)


def test_mysql_and_mariadb_are_one_scheme(tmp_path: Path) -> None:
    known = identity(tmp_path, **MIRROR | {"url": "mysql://u@h/copies"})
    assert known.relocation(identity(tmp_path, **MIRROR | {"url": "mariadb://u@h:3306/copies"})) is None
    moved = known.relocation(identity(tmp_path, **MIRROR | {"url": "mysql://u@h:3307/copies"}))
    assert moved == "The job was started with sink.url: mysql://h:3306/copies, but now it is mysql://h:3307/copies."


@pytest.mark.parametrize(
    ("sink", "changed"),
    [
        (MIRROR | {"table": "{table}"}, ["sink.table: {schema}_{table}, but now it is {table}"]),
        (
            MIRROR | {"rename": [{"match": "a(.*)", "to": r"\1"}, {"match": "b", "to": "c"}]},
            [r"sink.rename: none, but now it is a(.*) to \1, b to c"],
        ),
        (
            {"type": "console"},
            ["sink.type: mirror, but now it is console", "sink.table: {schema}_{table}, but now it is none"],
        ),
    ],
)
def test_every_changed_setting_is_named(tmp_path: Path, sink: dict[str, Any], changed: list[str]) -> None:
    known, now = identity(tmp_path, **MIRROR), identity(tmp_path, **sink)
    assert known.changes(now) == [f"The job was started with {text}." for text in changed]
    with pytest.raises(CheckpointError, match="Undo the change in the job file, or start over"):
        known.require_same(now)


@pytest.mark.parametrize("place", [{"path": "/lake"}, {"catalog": "main", "table": "lake.{table}"}])
def test_audit_columns_of_a_delta_table_are_in_it(tmp_path: Path, place: dict[str, str]) -> None:
    delta = {"type": "delta", **place}
    known = identity(tmp_path, **delta, audit_columns={"deleted": "gone"})
    assert known.changes(identity(tmp_path, **delta, audit_columns={"deleted": "gone"})) == []
    (text,) = known.changes(identity(tmp_path, **delta))
    assert text == "The job was started with sink.audit_columns: deleted: gone, but now it is none."


def test_the_first_identity_stays(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path / "checkpoint"))
    assert checkpoint.sink_identity() is None
    first = identity(tmp_path, type="files", path="./out")
    checkpoint.create_sink_identity(first)
    checkpoint.create_sink_identity(identity(tmp_path, type="files", path="./moved"))
    assert checkpoint.sink_identity() == first


@pytest.mark.parametrize(
    ("sink", "needs_key", "published_format", "needs_spark"),
    [
        (MIRROR, True, "arrow", False),
        ({"type": "files", "path": "/out"}, False, "parquet", False),
        ({"type": "files", "path": "/out", "format": "jsonl"}, False, "arrow", False),
        ({"type": "delta", "path": "/lake"}, True, "parquet", True),
        ({"type": "delta", "path": "/lake", "style": "changelog"}, False, "parquet", True),
        ({"type": "console"}, False, "arrow", False),
    ],
)
def test_needs_follow_from_the_job_file(
    tmp_path: Path, sink: dict[str, Any], needs_key: bool, published_format: str, needs_spark: bool
) -> None:
    source = {"url": "mysql://cdc:secret@nowhere.invalid/", "tables": ["shop.*"]}
    needs = sink_needs(load_job_file(write_job(tmp_path, source=source, sink=sink)).sink)
    found = (needs.needs_key, needs.published_format, needs.spark is not None)
    assert found == (needs_key, published_format, needs_spark)
    assert "pa55word" not in needs.display_name


@pytest.mark.parametrize(
    ("checkpoint", "sink", "column_name", "expected"),
    [
        ("./checkpoint", {"type": "delta", "path": "/lake"}, "id", "parquet"),
        ("s3a://bucket/job", {"type": "delta", "path": "/lake"}, "id", "parquet"),
        ("./checkpoint", {"type": "delta", "path": "/lake"}, "_SEQ", "arrow"),
        ("s3a://bucket/job", {"type": "files", "path": "/out"}, "_SEQ", "parquet"),
    ],
)
def test_spark_reads_a_published_file_if_it_tells_its_columns_apart(
    tmp_path: Path, checkpoint: str, sink: dict[str, Any], column_name: str, expected: str
) -> None:
    source = {"url": "mysql://cdc:secret@nowhere.invalid/", "tables": ["shop.*"]}
    job = load_job_file(write_job(tmp_path, source=source, sink=sink, checkpoint=checkpoint))
    output = replace(ORDERS, columns=(replace(ORDERS.columns[0], name=column_name), *ORDERS.columns[1:]))
    assert published_format(job, output) == expected
