"""Errors of servers that shut down, start up or fail over: they pass by themselves, on the source and on the target."""

import pymysql
import pytest

from tidemark.conf.libpq import passes_by_itself
from tidemark.readers.mysql.connect import is_transient
from tidemark.sinks.mirror.mysql.errors import sink_error
from tidemark.sinks.sink import ReadOnlyError, SinkBusyError

pytestmark = pytest.mark.pitfall(114)

ENDING = [1053, 1077, 1152, 1184, 1317, 1927, 3168, 3169, 4031, 2006, 2013]
GALERA = "WSREP has not yet prepared node for application use"


@pytest.mark.parametrize("code", ENDING)
def test_a_mysql_server_that_ends_is_tried_again(code: int) -> None:
    error = pymysql.err.OperationalError(code, "the server goes")
    assert is_transient(error)
    assert isinstance(sink_error(error, "writing"), SinkBusyError)


def test_a_closed_connection_is_opened_again() -> None:
    error = pymysql.err.InterfaceError(0, "")
    assert is_transient(error)
    assert isinstance(sink_error(error, "writing"), SinkBusyError)


def test_a_galera_node_that_joins_is_waited_for() -> None:
    joining, unknown = pymysql.err.OperationalError(1047, GALERA), pymysql.err.OperationalError(1047, "Unknown command")
    assert is_transient(joining)
    assert not is_transient(unknown)
    assert isinstance(sink_error(joining, "writing"), SinkBusyError)
    assert not isinstance(sink_error(unknown, "writing"), SinkBusyError)


@pytest.mark.parametrize("code", [3100, 3101])
def test_a_group_that_rolls_a_transaction_back_gets_it_again(code: int) -> None:
    assert isinstance(sink_error(pymysql.err.OperationalError(code, "rolled back"), "writing"), SinkBusyError)


@pytest.mark.parametrize("code", [1290, 1792, 1836])
def test_a_target_that_is_read_only_is_waited_for(code: int) -> None:
    assert isinstance(sink_error(pymysql.err.OperationalError(code, "read only"), "writing"), ReadOnlyError)


@pytest.mark.parametrize("code", ["57P01", "57P02", "57P03", "08006", "40001"])
def test_a_postgres_that_ends_or_starts_is_tried_again(code: str) -> None:
    assert passes_by_itself(code, "")


@pytest.mark.parametrize(
    "text",
    [
        "FATAL:  the database system is starting up",
        "FATAL:  the database system is shutting down",
        "FATAL:  the database system is in recovery mode",
        "FATAL:  the database system is not yet accepting connections",
        "FATAL:  the database system is not accepting connections",
    ],
)
def test_a_login_at_a_postgres_that_ends_or_starts_is_tried_again(text: str) -> None:
    assert passes_by_itself(None, text)
