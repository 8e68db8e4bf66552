"""Keys and split keys from a table's indexes."""

import pytest

from tidemark.readers.mysql.schema.catalog import schema_of, split_key
from tidemark.readers.mysql.schema.table_facts import (
    ColumnFacts,
    ForeignKey,
    Index,
    IndexColumn,
    TableFacts,
    foreign_keys_in,
)
from tidemark.state.errors import JobFileError, UnsupportedTypeError
from tidemark.state.table import TableId

T = TableId("shop", "events")


def column(name: str, source_type: str = "int", *, nullable: bool = False) -> ColumnFacts:
    charset = "utf8mb4" if source_type.startswith(("varchar", "text")) else None
    return ColumnFacts(name, source_type, charset, None, nullable, False)


def index(name: str, *columns: str, unique: bool = True, kind: str = "BTREE", prefix: int | None = None) -> Index:
    return Index(name, unique, kind, tuple(IndexColumn(c.rstrip("?"), c.endswith("?"), prefix) for c in columns))


def table(columns: list[ColumnFacts], *indexes: Index, hidden_hashes: int = 0) -> TableFacts:
    return TableFacts(T, "BASE TABLE", "InnoDB", tuple(columns), indexes, (), hidden_hashes)


AB = [column("a"), column("b"), column("c", nullable=True)]


def test_the_key_is_the_primary_key_in_the_order_of_its_index() -> None:
    schema = schema_of(table(AB, index("PRIMARY", "b", "a")))
    assert schema.key == ("b", "a")


@pytest.mark.pitfall(24)
def test_a_unique_key_is_not_chosen_silently() -> None:
    assert schema_of(table(AB, index("u", "a"))).key == ()


def test_a_named_unique_key_is_taken_in_the_order_of_its_index() -> None:
    facts = table(AB, index("u", "b", "a"))
    assert schema_of(facts, key_override=("a", "b")).key == ("b", "a")


@pytest.mark.pitfall(19)
@pytest.mark.parametrize(
    ("named", "indexes", "reason"),
    [
        (("a",), [], "no UNIQUE index"),
        (("a",), [index("i", "a", unique=False)], "no UNIQUE index"),
        (("a",), [index("u", "a", "b")], "no UNIQUE index"),
        (("c",), [index("u", "c?")], "may be NULL"),
        (("a",), [index("u", "a", prefix=3)], "only the beginning"),
        (("z",), [index("u", "a")], "no such column"),
        (("a",), [index("PRIMARY", "b")], "has the primary key (b)"),
    ],
)
def test_a_named_key_that_is_none_is_refused(named: tuple[str, ...], indexes: list[Index], reason: str) -> None:
    with pytest.raises(JobFileError) as caught:
        schema_of(table(AB, *indexes), key_override=named)
    assert reason in caught.value.message


def test_the_refusal_of_a_key_names_those_that_would_do() -> None:
    facts = table(AB, index("u1", "a", "b"), index("u2", "c?"))
    with pytest.raises(JobFileError, match=r"These would do: \(a, b\)"):
        schema_of(facts, key_override=("a",))


@pytest.mark.parametrize("excluded", ["b", "nope"])
def test_excluding_a_key_column_or_an_unknown_one_is_refused(excluded: str) -> None:
    with pytest.raises(JobFileError, match=excluded):
        schema_of(table(AB, index("PRIMARY", "b")), exclude_columns={excluded})


def test_excluded_columns_keep_their_place_uncaptured_and_hidden_ones_stand_behind() -> None:
    schema = schema_of(table(AB, index("PRIMARY", "a"), hidden_hashes=2), exclude_columns={"b"})
    assert [(c.name, c.captured) for c in schema.columns] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("DB_ROW_HASH_1", False),
        ("DB_ROW_HASH_2", False),
    ]
    assert schema.arrow_schema().names == ["a", "c"]


def test_an_unsupported_column_is_refused_unless_excluded() -> None:
    facts = table([column("a"), column("odd", "hologram")], index("PRIMARY", "a"))
    with pytest.raises(UnsupportedTypeError, match="odd"):
        schema_of(facts)
    assert schema_of(facts, exclude_columns={"odd"}).column("odd").arrow_type == ""


@pytest.mark.pitfall(18)
def test_a_split_key_is_all_of_the_key() -> None:
    facts = table(AB, index("PRIMARY", "b", "a"))
    assert split_key(facts, schema_of(facts)) == ("b", "a")


def test_a_split_key_ends_before_a_column_that_cannot_be_ordered() -> None:
    facts = table([column("a"), column("f", "double"), column("b")], index("PRIMARY", "a", "f", "b"))
    assert split_key(facts, schema_of(facts)) == ("a",)
    assert split_key(facts, schema_of(facts), lambda c: c.name != "a") == ()


def test_a_split_key_ends_before_a_column_that_is_indexed_in_part() -> None:
    parts = (IndexColumn("a", False, None), IndexColumn("t", False, 10))
    facts = table([column("a"), column("t", "text")], Index("PRIMARY", True, "BTREE", parts))
    assert split_key(facts, schema_of(facts)) == ("a",)


def test_an_index_without_order_or_no_key_gives_no_split_key() -> None:
    hashed = table(AB, index("u", "a", kind="HASH"))
    assert split_key(hashed, schema_of(hashed, key_override=("a",))) == ()
    assert split_key(table(AB), schema_of(table(AB))) == ()


def test_foreign_keys_of_a_shown_table() -> None:
    shown = """CREATE TABLE `fk` (
  `id` int(11) NOT NULL COMMENT 'CONSTRAINT `no` FOREIGN KEY (`x`) REFERENCES `p` (`id`) ON DELETE CASCADE',
  `p (q)` int(11) DEFAULT NULL,
  PRIMARY KEY (`id`),
  KEY `f` (`p (q)`),
  CONSTRAINT `f` FOREIGN KEY (`p (q)`) REFERENCES `par` (`id (x)`) ON DELETE CASCADE ON UPDATE SET NULL,
  CONSTRAINT `od``d` FOREIGN KEY (`a`, `b`) REFERENCES `other`.`par` (`a`, `b`) ON UPDATE CASCADE,
  CONSTRAINT `plain` FOREIGN KEY (`id`) REFERENCES `par` (`id`),
  CONSTRAINT `c` CHECK (`id` > 0)
) ENGINE=InnoDB DEFAULT CHARSET=latin1"""
    assert foreign_keys_in(shown) == {
        "f": ForeignKey("f", "CASCADE", "SET NULL"),
        "od`d": ForeignKey("od`d", "RESTRICT", "CASCADE"),
        "plain": ForeignKey("plain", "RESTRICT", "RESTRICT"),
    }
