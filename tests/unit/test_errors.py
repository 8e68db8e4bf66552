"""The classes of errors and their exit codes."""

import pickle

import pytest

from tidemark.sinks.mirror.sink import _concerning
from tidemark.sinks.sink import SinkBusyError
from tidemark.state.errors import (
    SchemaChangedError,
    SinkError,
    SourceUnavailableError,
    TidemarkError,
    UnsupportedTypeError,
    concerning,
    from_text,
)
from tidemark.state.table import TableId


def classes(root: type[TidemarkError]) -> list[type[TidemarkError]]:
    return [root, *(found for child in root.__subclasses__() for found in classes(child))]


def test_an_except_clause_never_takes_an_error_of_another_exit_code() -> None:
    """So an `except SourceNotUsableError` can't turn "try again later" (7) into "change the source" (3)."""
    for root in TidemarkError.__subclasses__():
        assert {found.exit_code for found in classes(root)} == {root.exit_code}, root


def test_an_error_keeps_its_table_in_its_text_and_when_it_is_pickled() -> None:
    table = TableId('shöp "x"', "a.b Table: c")
    error = SchemaChangedError("It has other columns.", "Leave it out: source.exclude_tables.", table)
    traceback = (
        f"org.apache.spark.SparkException: Job aborted\n  tidemark.state.errors.SchemaChangedError: {error}, at\n"
    )
    for found in (from_text(traceback), pickle.loads(pickle.dumps(error))):
        assert isinstance(found, SchemaChangedError)
        assert (found.message, found.table) == (error.message, table)
        assert found.remedy == error.remedy


def test_what_is_raised_about_columns_of_a_table_names_the_table() -> None:
    table = TableId("shop", "orders")
    with pytest.raises(UnsupportedTypeError) as caught, concerning(table):
        raise UnsupportedTypeError("It has a type.", "Exclude it.")
    assert pickle.loads(pickle.dumps(caught.value)).table == table
    with pytest.raises(SourceUnavailableError) as away, concerning(table):
        raise SourceUnavailableError("It is away.", "Wait.")
    assert away.value.table is None


def test_an_error_of_a_copy_gets_its_table_once_and_is_never_its_own_cause() -> None:
    table, other = TableId("shop", "orders"), TableId("shop", "lines")
    with pytest.raises(SinkBusyError) as caught, _concerning(table):
        raise SinkBusyError("It is away.", "Wait.")
    assert caught.value.table == table
    assert caught.value.__cause__ is not None
    with pytest.raises(SinkError) as named, _concerning(table):
        raise SinkError("It is gone.", "Start over.", other)
    assert named.value.table == other
    assert named.value.__cause__ is None
