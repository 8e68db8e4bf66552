import dataclasses
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.conf.tables import RenameRule, TableName, parse_table_glob, parse_table_name, parse_table_template

names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@given(names, names)
def test_every_name_reads_back_as_written(database: str, table: str) -> None:
    name = TableName(database, table)
    assert parse_table_name(str(name)) == name


@given(names, names, names)
def test_a_written_name_is_a_glob_that_matches_it_alone(database: str, table: str, other: str) -> None:
    name = TableName(database, table)
    glob = parse_table_glob(str(name))
    assert glob.matches(database, table)
    assert glob.only_table == glob.example == name
    assert glob.matches(database, other) == (other == table)
    assert glob.matches(other, table) == (other == database)


@pytest.mark.parametrize(
    ("glob", "database", "table", "matches"),
    [
        ("shop.cust*", "shop", "customers", True),
        ("shop.cust*", "shop", "Customers", False),
        ("shop.cust*", "shop2", "customers", False),
        ("shop_?.orders", "shop_1", "orders", True),
        ("shop_?.orders", "shop_12", "orders", False),
        ("*.orders", "any.thing", "orders", True),
        ("shop.log_[0-9]", "shop", "log_7", True),
        ("shop.log_[!0-9]", "shop", "log_7", False),
        ("shop.`a*`", "shop", "a*", True),
        ("shop.`a*`", "shop", "ab", False),
        ("shop.`orders.2024`", "shop", "orders.2024", True),
        ("`my``db`.t", "my`db", "t", True),
        ("shop.*", "shop", "line\nbreak", True),
    ],
)
def test_globs_match_by_part_and_case(glob: str, database: str, table: str, matches: bool) -> None:
    assert parse_table_glob(glob).matches(database, table) is matches


@pytest.mark.parametrize("glob", ["shop.*", "s?op.[ab]x*", "*.[!a]"])
def test_the_example_of_a_glob_is_matched_by_it(glob: str) -> None:
    pattern = parse_table_glob(glob)
    assert pattern.matches(pattern.example.database, pattern.example.name)
    assert pattern.only_table is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("orders", "'orders' names no database"),
        ("a.b.c", "a name with a dot must be in backticks: shop.`orders.2024`"),
        ("a.", "must be a table"),
        (".b", "must be a table"),
        ("", "must be a table"),
        ("a.`b", "must be a table"),
        ("a.b`c`", "must be a table"),
        ("a. b", "must be a table"),
    ],
)
def test_wrong_names_and_globs_are_refused(text: str, reason: str) -> None:
    for parse in (parse_table_name, parse_table_glob):
        with pytest.raises(ValueError, match="must be a table") as caught:
            parse(text)
        assert reason in str(caught.value)


def test_a_name_is_no_glob() -> None:
    with pytest.raises(ValueError, match="globs are not allowed here"):
        parse_table_name("shop.cust*")
    assert parse_table_name("shop.`cust*`") == TableName("shop", "cust*")


@pytest.mark.parametrize(
    ("template", "target"),
    [
        ("{schema}_{table}", (None, "shop_orders.24")),
        ("{table}", (None, "orders.24")),
        ("copy.{table}", ("copy", "orders.24")),
        ("{schema}.{table}", ("shop", "orders.24")),
        ("all", (None, "all")),
    ],
)
def test_a_template_routes_a_table(template: str, target: tuple[str | None, str]) -> None:
    assert parse_table_template(template).target(TableName("shop", "orders.24")) == target


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{database}_{table}",
            "unknown placeholder {database}. The source's database is {schema} here. Allowed: {schema}, {table}",
        ),
        ("{tabel}", "unknown placeholder {tabel}. Allowed: {schema}, {table}"),
        ("{table", "unpaired brace"),
        ("a.b.{table}", "one dot between them"),
        ("copy.", "must be a template"),
        ("", "must be a template"),
        (" {table}", "must be a template"),
    ],
)
def test_wrong_templates_are_refused(template: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_table_template(template)


def test_names_globs_and_templates_survive_pickling() -> None:
    for value in (TableName("a", "b"), parse_table_glob("a.*"), parse_table_template("{table}")):
        assert pickle.loads(pickle.dumps(value)) == value


RULES = (RenameRule("shop_(.*)", r"\1"), RenameRule("(?P<base>.*)_v[0-9]+", r"\g<base>"), RenameRule("shop_x", "never"))


@pytest.mark.parametrize(
    ("table", "target"),
    [
        (TableName("shop", "orders"), "orders"),
        (TableName("shop", "orders_v2"), "orders_v2"),  # the first rule that matches is the only one
        (TableName("shop", "x"), "x"),
        (TableName("stock", "parts_v12"), "stock_parts"),
        (TableName("stock", "parts_v12_old"), "stock_parts_v12_old"),  # the whole name must match
        (TableName("my_shop", "orders"), "my_shop_orders"),
    ],
)
def test_the_first_rule_that_matches_the_whole_name_renames_a_copy(table: TableName, target: str) -> None:
    for text, schema in (("{schema}_{table}", None), ("copy.{schema}_{table}", "copy")):
        template = pickle.loads(pickle.dumps(dataclasses.replace(parse_table_template(text), renames=RULES)))
        assert template.target(table) == (schema, target)
