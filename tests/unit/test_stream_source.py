"""The options of `spark.readStream.format("tidemark")`: what they mean, and how wrong ones are refused."""

from pathlib import Path

import pytest

from tests.support.change_parts import INSERT, NOTES, ORDERS, UNCHANGED, UPDATE, log_part
from tidemark.jobs.spark.stream_source import job_of_options
from tidemark.state.errors import JobFileError
from tidemark.state.typed_rows import typed_batches, typed_schema

GOOD = {"url": "mysql://cdc:pa55word@db/", "table": "shop.Order_Lines", "checkpoint": "/checkpoints/lines"}


def test_options_are_a_job_of_one_table() -> None:
    job = job_of_options(
        {
            **GOOD,
            "snapshot.split_rows": "1000",
            "source.columns": "{shop.Order_Lines: {exclude: [ssn]}}",
            "mode": "full",
        }
    )
    assert (job.job, job.mode, job.snapshot.split_rows) == ("shop-order-lines", "full", 1000)
    (table,) = job.source.tables
    assert table.matches("shop", "Order_Lines")
    assert not table.matches("shop", "order_lines")
    (columns,) = job.source.columns.values()
    assert list(columns.exclude) == ["ssn"]


def test_a_relative_checkpoint_starts_at_the_working_folder() -> None:
    assert job_of_options({**GOOD, "checkpoint": "here"}).checkpoint == str(Path.cwd() / "here")


@pytest.mark.parametrize("name", ["url", "table", "checkpoint"])
def test_a_missing_option_is_named(name: str) -> None:
    with pytest.raises(JobFileError, match=f"Option {name} of format tidemark is missing"):
        job_of_options({key: value for key, value in GOOD.items() if key != name})


@pytest.mark.parametrize("name", ["sink.type", "trigger", "spark.master", "path", "source.url", "source.tables"])
def test_an_option_that_would_do_nothing_is_refused(name: str) -> None:
    with pytest.raises(JobFileError, match=f"Option {name} is not allowed with format tidemark"):
        job_of_options({**GOOD, name: "x"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("snapshot.split_row", "9", "option snapshot.split_row: unknown key. Did you mean 'split_rows'?"),
        ("snapshot.split_rows", "many", "option snapshot.split_rows: must be a whole number, at least 1; found: many"),
        ("tabel", "shop.orders", "option tabel: unknown key."),
        ("url", "oracle://cdc:pa55word@db/", "option source.url:"),
        ("url", "mysql://cdc:${NO_SUCH_VARIABLE}@db/", "NO_SUCH_VARIABLE"),
        ("table", "orders", "option source.tables: source.tables[0]: must be a table or glob as database.table"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_without_secrets(name: str, value: str, said: str) -> None:
    with pytest.raises(JobFileError) as caught:
        job_of_options({**GOOD, name: value})
    assert said in str(caught.value)
    assert "pa55word" not in str(caught.value)


def test_rows_are_typed_as_announced() -> None:
    whole = log_part(1, (ORDERS, [(INSERT, (1, "Ada", None, None, None))]))
    (batch,) = typed_batches(whole)
    assert batch.schema == typed_schema(ORDERS)
    assert batch.schema.names[-6:] == [
        "_change_type",
        "_commit_version",
        "_commit_timestamp",
        "_seq",
        "_txn_id",
        "_is_snapshot",
    ]
    (batch,) = typed_batches(log_part(2, (NOTES, [(UPDATE, (1, "en", 2, UNCHANGED, None, None))])))
    assert batch.schema == typed_schema(NOTES)
    assert batch.to_pylist()[0]["_unchanged"] == ["body"]
