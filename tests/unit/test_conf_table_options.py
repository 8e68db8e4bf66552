"""The section `tables`: another way to write the options of a table. Everything else sees the sections that have them."""

import json
from pathlib import Path

import pytest

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.json_schema import json_schema
from tidemark.conf.load import load_job_file
from tidemark.conf.tables import TableName

IN_ONE_PLACE = (
    SMALL
    + """\
tables:
  shop.orders:
    where: "id > 7"
    key: [id, line]
    columns: {exclude: [note], mask: {email: sha256}}
    transform: SELECT * FROM input
    on_bad_value: {price: null}
  "shop.`order.lines`":
    key: [id]
  shop.empty:
"""
)
BY_OPTION = SMALL.replace(
    'tables: ["shop.*"]',
    """tables: ["shop.*"]
  keys: {shop.orders: [id, line], "shop.`order.lines`": [id]}
  columns:
    shop.orders: {exclude: [note], mask: {email: sha256}}""",
).replace(
    "path: /out",
    """path: /out
  on_bad_value_in: {shop.orders: {price: null}}
snapshot: {where: {shop.orders: id > 7}}
transforms: {shop.orders: SELECT * FROM input}""",
)
PLACED = SMALL + "tables:\n  shop.orders:\n    "
ORDERS = 'tables."shop.orders"'


def test_both_spellings_make_the_same_job(tmp_path: Path) -> None:
    job, other = load_text(tmp_path, IN_ONE_PLACE), load_text(tmp_path, BY_OPTION)
    assert job.redacted() == other.redacted()
    assert job.snapshot.where == {TableName("shop", "orders"): "id > 7"}
    assert job.source.key_columns("shop", "order.lines") == ("id",)
    assert not job.tables
    assert "tables" not in job.redacted()


def test_options_of_other_tables_stay_where_they_are(tmp_path: Path) -> None:
    text = BY_OPTION + "tables: {shop.items: {key: [sku], where: sku > 1}}\n"
    job = load_text(tmp_path, text)
    assert job.source.key_columns("shop", "items") == ("sku",)
    assert job.source.key_columns("shop", "orders") == ("id", "line")
    assert [str(table) for table in job.snapshot.where] == ["shop.orders", "shop.items"]


def test_partitions_of_a_delta_table(tmp_path: Path) -> None:
    text = SMALL.replace("type: files", "type: delta") + "tables: {shop.orders: {partition_by: [country]}}\n"
    job = load_text(tmp_path, text)
    assert job.sink.type == "delta"
    assert job.sink.partition_by == {TableName("shop", "orders"): ("country",)}


def test_places_are_those_of_the_file(tmp_path: Path) -> None:
    job = load_text(tmp_path, IN_ONE_PLACE)
    assert job.place("transforms", "shop.orders") == f"job.yaml:14: {ORDERS}.transform"
    assert job.place("source", "columns", "shop.orders", "mask") == f"job.yaml:13: {ORDERS}.columns.mask"
    assert job.place("source", "keys", "shop.`order.lines`") == 'job.yaml:17: tables."shop.`order.lines`".key'
    overridden = load_text(tmp_path, SMALL, "tables.shop.orders.transform=SELECT * FROM input")
    assert overridden.place("transforms", "shop.orders") == f"--set {ORDERS}.transform"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("key: [id, 7]", f"job.yaml:11: {ORDERS}.key[1]: must be text; found: 7. Text that looks like a number"),
        ("where: [a]", f"job.yaml:11: {ORDERS}.where: must be an SQL condition"),
        ("transform: DROP TABLE x", f"job.yaml:11: {ORDERS}.transform: "),
        ("columns: {exclud: [a]}", f"job.yaml:11: {ORDERS}.columns.exclud: unknown key. Did you mean 'exclude'?"),
        ("columns: {exclude: [a], mask: {a: redact}}", f"job.yaml:11: {ORDERS}.columns.mask: masks 'a', which is"),
        ("on_bad_value: {a: text}", f"job.yaml:11: {ORDERS}.on_bad_value.a: text is only for sink.type mirror."),
        ("partition_by: [a]", f"job.yaml:11: {ORDERS}.partition_by: is only for sink.type delta"),
        (
            "keys: [a]",
            f"job.yaml:11: {ORDERS}.keys: unknown key. Did you mean 'key'? Allowed here: columns, key, where",
        ),
        ("where: ${NO_SUCH}", f"job.yaml:11: {ORDERS}.where: the environment variable NO_SUCH is not set."),
        ("- where", f"job.yaml:10: {ORDERS}: must be a section with columns, key, where"),
    ],
)
def test_mistakes_are_told_as_they_are_written(tmp_path: Path, written: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, f"{PLACED}{written}\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        (
            "[shop.orders]",
            "job.yaml:9: tables: must be a mapping from tables to options, like {shop.orders: {key: [id]}}; ",
        ),
        ("{orders: {key: [id]}}", "job.yaml:9: tables.orders: must be a table as database.table; 'orders' names no"),
        ('{"shop.*": {key: [id]}}', 'job.yaml:9: tables."shop.*": must be a table as database.table; globs are not'),
        (
            '{shop.a: {key: [id]}, "`shop`.a": {key: [x]}}',
            'job.yaml:9: tables."`shop`.a".key: is given twice: job.yaml:9 has tables."shop.a".key. Write it in one',
        ),
    ],
)
def test_wrong_tables_are_refused(tmp_path: Path, tables: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, f"{SMALL}tables: {tables}\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("option", "home"),
    [
        ("where: a > 1", "snapshot: {where: {shop.orders: a > 2}}"),
        ("transform: SELECT * FROM input", "transforms: {shop.orders: SELECT * FROM input}"),
    ],
)
def test_an_option_that_is_given_in_both_places_is_refused(tmp_path: Path, option: str, home: str) -> None:
    (found,) = problems_of(tmp_path, f"{PLACED}{option}\n{home}\n")
    name = home.partition("{")[0].strip(": ") + (".where" if "where" in home else "")
    key = option.partition(":")[0]
    assert found == (
        f'job.yaml:11: {ORDERS}.{key}: is given twice: job.yaml:12 has {name}."shop.orders". Write it in one of the two places.'
    ).removesuffix(".")


def test_set_changes_an_option_of_a_table(tmp_path: Path) -> None:
    job = load_text(
        tmp_path, IN_ONE_PLACE, "tables.shop.orders.where=id > 8", 'tables."shop.orders".columns.exclude=[a]'
    )
    assert job.snapshot.where == {TableName("shop", "orders"): "id > 8"}
    assert job.source.excluded_columns("shop", "orders") == {"a"}


def test_commands_without_passwords_read_such_a_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(IN_ONE_PLACE.replace("pa55word", "${NOT_SET}"))
    assert load_job_file(tmp_path / "job.yaml", environ={}, connects=False).source.keys


def test_editors_know_the_section() -> None:
    schema = json_schema()
    assert {"where", "key", "columns"} <= set(schema["$defs"]["TableOptions"]["properties"])
    assert "TableOptions" in json.dumps(schema["properties"]["tables"])
