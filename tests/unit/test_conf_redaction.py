"""No secret gets out: through texts, logs, tracebacks or pickles of errors."""

import gc
import html
import io
import json
import logging
import pickle
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.logger import PySparkLogger
from rich.console import Console
from rich.live import Live

from tidemark.conf.redaction import (
    RedactingFilter,
    Secret,
    forget_secrets,
    install_redaction,
    redact,
    redact_exception,
    redact_values,
    remember_secret,
)
from tidemark.jobs.monitoring.events import JsonEvents, TerminalEvents
from tidemark.jobs.monitoring.history import Kept, KeptEvents
from tidemark.state.checkpoint.codec import EVENTS
from tidemark.state.checkpoint.store import LocalStore
from tidemark.state.errors import SourceUnavailableError

PASSWORD = "p@ss/w'rd \\é&"


@pytest.fixture(autouse=True)
def _secrets_of_one_test_only() -> Iterator[None]:
    yield
    forget_secrets()


@pytest.fixture
def _installed() -> Iterator[None]:
    uninstall = install_redaction([Secret(PASSWORD)])
    yield
    uninstall()


def fail(error: Exception) -> None:
    raise error


def encodings(secret: str) -> list[str]:
    encoded = quote(secret, safe="")
    return [
        secret,
        encoded,
        quote(secret),
        quote_plus(secret),
        re.sub(r"%[0-9A-F]{2}", lambda found: found.group().lower(), encoded),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        html.escape(secret),
        repr(secret)[1:-1],
        repr(secret.encode())[2:-1],
        secret.replace("'", "''"),
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=4), st.text("ab: ", max_size=5))
@example(PASSWORD, "x")
@example("a'b\"c'd", "")
@pytest.mark.pitfall(84)
def test_every_written_form_of_a_secret_is_masked(secret: str, around: str) -> None:
    forget_secrets()
    remember_secret(secret)
    for form in encodings(secret):
        assert form not in redact(f"{around}{form}{around}")


def test_short_secrets_are_masked_where_they_stand_alone() -> None:
    remember_secret("ab")
    assert redact("password ab, 'ab' and mysql://u:ab@h but not cab or abc") == (
        "password ***, '***' and mysql://u:***@h but not cab or abc"
    )


def test_an_empty_secret_masks_nothing() -> None:
    assert str(Secret("")) == ""
    assert redact("some text") == "some text"


def test_the_longest_of_overlapping_secrets_is_masked_whole() -> None:
    remember_secret("abcd")
    remember_secret("abcdefgh")
    assert redact("abcdefgh abcdef") == "*** ***ef"


def test_lines_of_a_secret_are_masked_one_by_one() -> None:
    remember_secret("-----BEGIN-----\nMIIEvQIBADAN\nxy\n")
    assert redact("> MIIEvQIBADAN <") == "> *** <"


def test_passwords_in_urls_are_masked_even_if_unknown() -> None:
    assert redact("at mysql://cdc:who@knows@db:3306/x and http://h:80/a@b") == (
        "at mysql://cdc:***@db:3306/x and http://h:80/a@b"
    )


def test_unpickling_makes_a_secret_known() -> None:
    data = pickle.dumps(Secret("travelled"))
    forget_secrets()
    assert redact("travelled") == "travelled"
    assert pickle.loads(data).get_secret_value() == "travelled"
    assert redact("travelled") == "***"


@pytest.fixture
def _pyspark_logged_an_error_of_sql() -> Iterator[None]:
    """Leaves a PySpark logger that does not propagate. pytest adds its handler to each such logger before the next
    phase of a test, and PySpark's loggers give every handler a formatter of theirs, which leaves tracebacks out."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    propagated, logger.propagate = logger.propagate, False
    yield
    logger.propagate = propagated


@pytest.mark.usefixtures("_installed", "_pyspark_logged_an_error_of_sql")
def test_log_records_are_masked_for_handlers_added_before_and_after(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setFormatter(logging.Formatter())
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(message)s %(where)s"))
    handler.addFilter(RedactingFilter())
    logging.setLoggerClass(logging.Logger)  # PySpark exchanges it for moments, and not safely among threads
    logger = logging.getLogger("tests.redaction")
    logger.addHandler(handler)
    try:
        try:
            fail(ValueError(f"refused {PASSWORD}"))
        except ValueError:
            logger.exception(
                "login %s %r", PASSWORD, {"pw": PASSWORD}, extra={"where": f"at {PASSWORD}"}, stack_info=True
            )
    finally:
        logger.removeHandler(handler)
    for text in (stream.getvalue(), caplog.text):
        assert PASSWORD not in text
        assert repr(PASSWORD)[1:-1] not in text
        assert "login ***" in text
        assert "ValueError: refused ***" in text
    assert "at ***" in stream.getvalue()
    record = caplog.records[-1]
    assert record.exc_info is None
    assert record.args is None


@pytest.mark.usefixtures("_installed")
def test_uncaught_errors_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        try:
            fail(KeyError(PASSWORD))
        except KeyError as inner:
            raise RuntimeError(f"mysql://u:{quote(PASSWORD, safe='')}@h") from inner
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    written = capsys.readouterr().err
    assert "RuntimeError: mysql://u:***@h" in written
    assert "KeyError: " in written
    assert PASSWORD not in written
    assert repr(PASSWORD)[1:-1] not in written


@pytest.mark.usefixtures("_installed")
def test_errors_of_threads_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    thread = threading.Thread(target=fail, args=[RuntimeError(PASSWORD)], name="reader")
    thread.start()
    thread.join()
    written = capsys.readouterr().err
    assert "Exception in reader:" in written
    assert "RuntimeError: ***" in written
    assert PASSWORD not in written


@pytest.mark.usefixtures("_installed")
def test_errors_that_cannot_be_raised_are_masked(capsys: pytest.CaptureFixture[str]) -> None:
    class Leaking:
        def __del__(self) -> None:
            fail(RuntimeError(PASSWORD))

    leaking = Leaking()
    del leaking
    gc.collect()
    written = capsys.readouterr().err
    assert "RuntimeError: ***" in written
    assert PASSWORD not in written


def test_uninstalling_restores_what_was_there() -> None:
    before = sys.excepthook, threading.excepthook, sys.unraisablehook, logging.getLogRecordFactory()
    install_redaction()()
    assert before == (sys.excepthook, threading.excepthook, sys.unraisablehook, logging.getLogRecordFactory())


def test_an_error_is_masked_in_place_with_what_it_came_from() -> None:
    remember_secret(PASSWORD)
    inner = ValueError("with", {"password": [PASSWORD]}, 5)
    error = SourceUnavailableError(f"No answer from {PASSWORD}.", "Check it.")
    error.__cause__ = inner
    redact_exception(error)
    assert inner.args == ("with", {"password": ["***"]}, 5)
    assert str(error) == "No answer from ***. Remedy: Check it."
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.pitfall(124)
def test_numbers_and_keys_of_printed_json_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    """A password that looks like a number, or like the name of a field, does not change the shape of an event."""
    for secret in ("1000", "rows", "true"):
        remember_secret(secret)
    facts = {"rows": 1000, "lag": 1000.0, "done": True, "none": None, "text": "1000 rows", "tables": [("rows", 1000)]}
    JsonEvents().note("epoch", **facts, path=Path("/x/1000"))
    printed = json.loads(capsys.readouterr().out)
    assert {name: printed[name] for name in facts} == {
        **facts,
        "text": "*** ***",
        "tables": [["***", 1000]],
    }
    assert printed["path"] == "/x/***"
    assert printed["event"] == "epoch"


@pytest.mark.pitfall(124)
def test_numbers_of_events_are_kept_on_a_terminal_and_in_the_history(tmp_path: Path) -> None:
    remember_secret("1000")
    printed = io.StringIO()
    events = TerminalEvents(Live(console=Console(file=printed)))
    store = LocalStore(str(tmp_path))
    KeptEvents(events, store).note("started", rows=1000, text="it is 1000")
    assert printed.getvalue().strip() == "started rows=1000 text=it is ***"
    kept = Kept(store, EVENTS).load()
    assert kept is not None
    assert kept.events[0].facts == (("rows", "1000"), ("text", "it is ***"))


@pytest.mark.pitfall(124)
def test_values_of_every_kind_are_redacted_inside() -> None:
    remember_secret("hunter22")
    value = {"a": ["x hunter22", ("hunter22", 1)], "hunter22": {"b": None}, "c": Secret("other"), "d": True}
    assert redact_values(value) == {"a": ["x ***", ["***", 1]], "hunter22": {"b": None}, "c": "***", "d": True}
