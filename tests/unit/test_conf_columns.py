"""Excluded, masked and transformed columns in the job file."""

import pickle
from pathlib import Path

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.tables import TableName
from tidemark.readers.projection.settings import lines_of

COLUMNS = (
    SMALL
    + """\
transforms:
  shop.orders: >
    SELECT *, amount * 1.2 AS gross
    FROM input
  "`shop`.o2": SELECT id FROM input
"""
).replace(
    'tables: ["shop.*"]',
    """tables: ["shop.*"]
  mask_key: ${KEY}
  columns:
    shop.people:
      exclude: [ssn]
      mask: {email: sha256, phone: null, name: redact}""",
)
ENVIRON = {"KEY": "a key of 16 letters or more"}


def test_what_is_read_of_them(tmp_path: Path) -> None:
    job = load_text(tmp_path, COLUMNS, environ=ENVIRON)
    assert job.source.excluded_columns("shop", "people") == {"ssn"}
    assert job.source.masked_columns("shop", "people") == {"email": "sha256", "phone": "null", "name": "redact"}
    assert job.source.masked_columns("shop", "orders") == {}
    assert job.transform("shop", "orders") == "SELECT *, amount * 1.2 AS gross FROM input"
    assert job.transform("shop", "o2") == "SELECT id FROM input"
    assert job.transform("shop", "people") is None
    assert job.source.mask_key is not None
    assert job.source.mask_key.get_secret_value() == ENVIRON["KEY"]
    assert ENVIRON["KEY"] not in f"{job!r} {job.redacted()}"
    assert not any("mask_key" in text for text in job.warnings())
    assert (
        "source.mask_key prevents this"
        in load_text(tmp_path, COLUMNS, "source.mask_key=null", environ=ENVIRON).warnings()[0]
    )


def test_where_it_stands(tmp_path: Path) -> None:
    job = pickle.loads(pickle.dumps(load_text(tmp_path, COLUMNS, environ=ENVIRON)))
    table = str(TableName("shop", "people"))
    assert job.place("source", "columns", table, "mask") == 'job.yaml:10: source.columns."shop.people".mask'
    assert job.place("source", "columns", table, "exclude") == 'job.yaml:9: source.columns."shop.people".exclude'
    assert job.place("transforms", "shop.o2") == 'job.yaml:18: transforms."shop.o2"'
    assert job.place("transforms", "shop.other") == 'transforms."shop.other"'


def test_what_is_shown_of_them(tmp_path: Path) -> None:
    assert list(lines_of(load_text(tmp_path, COLUMNS, environ=ENVIRON))) == [
        "shop.o2: transformed by SELECT id FROM input",
        "shop.orders: transformed by SELECT *, amount * 1.2 AS gross FROM input",
        "shop.people: without ssn; email masked by sha256 with source.mask_key; name masked by redact; phone masked by null",
    ]


def test_a_mask_key_is_never_quoted(tmp_path: Path) -> None:
    (problem,) = problems_of(tmp_path, COLUMNS, "source.mask_key=sesame")
    assert "sesame" not in problem


def test_a_key_that_is_masked_or_excluded(tmp_path: Path) -> None:
    keys = ("source.keys.shop.people=[ssn, email]",)
    assert problems_of(tmp_path, COLUMNS, *keys, environ=ENVIRON) == [
        "--set source.keys.\"shop.people\": has 'email', which source.columns masks: a masked column can't identify rows",
        "--set source.keys.\"shop.people\": has 'ssn', which source.columns excludes",
    ]
