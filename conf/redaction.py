"""Secrets, and the redaction of everything that is printed.

A secret is a :class:`Secret` as soon as it is read. Creating one (also by unpickling, on an executor) registers its value
in this process. ``redact`` then finds it in any text: as it is, percent-encoded, and escaped as a JSON, HTML, SQL or Python
literal. ``install_redaction`` redacts log records and tracebacks of this process.
"""

import functools
import html
import json
import logging
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any
from urllib.parse import quote, quote_plus

from pydantic import SecretStr

MASK = "***"
MIN_LENGTH_INSIDE_WORDS = 4
"""Shorter secrets are masked only as whole words: masking every `a` of a text hides nothing."""
MIN_LINE_LENGTH = 8
"""Lines of this length or more in a secret of several lines are also masked alone: logs break text at line ends."""

_URL_PASSWORD = re.compile(r"(?<=://)([^\s/:@'\"]*):([^\s/'\"]*)@")


class Secret(SecretStr):
    """A text that no repr, str, JSON, traceback or log shows. Only ``get_secret_value()`` returns it.

    Empty means that there is none. It pickles with its value, because executors need it.
    """

    def __init__(self, secret_value: str) -> None:
        super().__init__(secret_value)
        remember_secret(secret_value)

    def __str__(self) -> str:
        return MASK if self.get_secret_value() else ""

    def __repr__(self) -> str:
        return f"Secret({str(self)!r})"

    def __format__(self, format_spec: str) -> str:
        return format(str(self), format_spec)

    def __reduce__(self) -> tuple[type["Secret"], tuple[str]]:
        return Secret, (self.get_secret_value(),)


class _KnownSecrets:
    """The secrets that this process knows, as one compiled pattern of all their written forms."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str) -> None:
        if not value or value in self._values:
            return
        with self._lock:
            self._values = self._values | {value}
            forms = {form for known in self._values for form in _written_forms(known)}
            self._pattern = re.compile("|".join(_as_pattern(form) for form in sorted(forms, key=len, reverse=True)))

    def forget_all(self) -> None:
        with self._lock:
            self._values, self._pattern = frozenset(), None

    def mask(self, text: str) -> str:
        return text if self._pattern is None else self._pattern.sub(MASK, text)


_KNOWN = _KnownSecrets()


def remember_secret(value: str) -> None:
    """Makes ``redact`` mask ``value`` in this process from now on."""
    _KNOWN.add(value)


def forget_secrets() -> None:
    """Clears the process's list of secrets. Only tests do this."""
    _KNOWN.forget_all()


def redact(text: str) -> str:
    """Returns ``text`` with ``***`` for every known secret, and for every password in a URL, known or not."""
    return _KNOWN.mask(_URL_PASSWORD.sub(rf"\1:{MASK}@", text))


def redact_values(value: object) -> object:
    """Returns ``value`` for a printed JSON object: every text in it is redacted, also in lists and dicts.

    Numbers, truth values, None and the keys of dicts stay as they are, even if a secret looks like them. Anything else
    becomes its redacted text.
    """
    match value:
        case None | bool() | int() | float():
            return value
        case list() | tuple():
            return [redact_values(item) for item in value]
        case dict():
            return {key: redact_values(item) for key, item in value.items()}
        case _:
            return redact(str(value))


def redact_exception(error: BaseException) -> None:
    """Masks secrets in an exception's texts, and in those of its causes, in place.

    Needed for errors that leave this process without its excepthook: Spark pickles a worker's exception and writes it to
    its event log and its web pages.
    """
    for link in _chain(error):
        link.args = tuple(_redact_value(argument) for argument in link.args)
        for name, value in list(vars(link).items()):
            masked = _redact_value(value)
            if masked is not value:
                object.__setattr__(link, name, masked)


class RedactingFilter(logging.Filter):
    """A filter for handlers: masks message, traceback, stack and extra fields of each record. Keeps every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        redact_record(record)
        for name, value in list(vars(record).items()):
            setattr(record, name, _redact_value(value))
        return True


def redact_record(record: logging.LogRecord) -> None:
    """Replaces message and traceback of ``record`` by final, masked text, so that no handler finds the originals in it."""
    record.msg, record.args = redact(record.getMessage()), None
    if record.exc_info is not None and not isinstance(record.exc_info, bool) and record.exc_info[1] is not None:
        record.exc_text = _format_exception(record.exc_info[1])
    elif record.exc_text:
        record.exc_text = redact(record.exc_text)
    record.exc_info = None
    if record.stack_info:
        record.stack_info = redact(record.stack_info)


def install_redaction(secrets: Iterable[Secret | str] = ()) -> Callable[[], None]:
    """Masks secrets in every log record and every uncaught exception of this process. Returns a function that undoes this.

    Log records are masked when they are created, so handlers that are added later are covered too. The root logger's
    present handlers also get a :class:`RedactingFilter`, for the extra fields, which are set later.
    """
    for secret in secrets:
        remember_secret(secret if isinstance(secret, str) else secret.get_secret_value())
    previous_factory = logging.getLogRecordFactory()
    previous_hooks = sys.excepthook, threading.excepthook, sys.unraisablehook
    filtered_handlers = [(handler, RedactingFilter()) for handler in logging.getLogger().handlers]
    for handler, added in filtered_handlers:
        handler.addFilter(added)
    logging.setLogRecordFactory(functools.partial(_make_record, previous_factory))
    sys.excepthook, threading.excepthook, sys.unraisablehook = _excepthook, _thread_hook, _unraisable_hook

    def uninstall() -> None:
        logging.setLogRecordFactory(previous_factory)
        sys.excepthook, threading.excepthook, sys.unraisablehook = previous_hooks
        for handler, added in filtered_handlers:
            handler.removeFilter(added)

    return uninstall


def _make_record(factory: Callable[..., logging.LogRecord], /, *args: Any, **kwargs: Any) -> logging.LogRecord:
    record = factory(*args, **kwargs)
    redact_record(record)
    return record


def _excepthook(_kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    sys.stderr.write(_format_exception(error.with_traceback(trace)) + "\n")


def _thread_hook(arguments: threading.ExceptHookArgs) -> None:
    name = "a thread" if arguments.thread is None else arguments.thread.name
    if arguments.exc_value is not None and not isinstance(arguments.exc_value, SystemExit):
        sys.stderr.write(f"Exception in {name}:\n{_format_exception(arguments.exc_value)}\n")


def _unraisable_hook(unraisable: "sys.UnraisableHookArgs") -> None:
    if unraisable.exc_value is not None:
        reason = unraisable.err_msg or "Exception ignored"
        sys.stderr.write(redact(f"{reason}: {unraisable.object!r}\n") + _format_exception(unraisable.exc_value) + "\n")


def _format_exception(error: BaseException) -> str:
    return redact("".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip("\n"))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is not None and id(link) not in seen:
            seen.add(id(link))
            yield link
            waiting += [link.__cause__, link.__context__]


def _redact_value(value: object) -> object:
    """Masks texts, also in tuples, lists and dicts. Returns anything else, and a value without secrets, unchanged."""
    if isinstance(value, str):
        masked = redact(value)
        return value if masked == value else masked
    if type(value) in (tuple, list):
        items: Any = value
        changed = [_redact_value(item) for item in items]
        return value if all(new is old for new, old in zip(changed, items, strict=True)) else type(items)(changed)
    if type(value) is dict:
        changes = {key: _redact_value(item) for key, item in value.items()}
        return value if all(changes[key] is value[key] for key in value) else changes
    return value


def _written_forms(value: str) -> Iterator[str]:
    """Yields the forms of ``value`` in texts: plain, in URLs, as a JSON, HTML, SQL or Python literal, line by line."""
    yield value
    for encoded in (quote(value, safe=""), quote(value), quote_plus(value), quote(value, safe=" +")):
        yield encoded
        yield re.sub(r"%[0-9A-F]{2}", lambda match: match.group().lower(), encoded)
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield html.escape(value, quote=False)
    yield html.escape(value)
    yield value.replace("'", "''")
    yield value.replace("\\", "\\\\").replace("'", "\\'")
    yield repr(value)[1:-1]
    yield repr(value.encode())[2:-1]
    yield from (line for line in value.splitlines() if len(line) >= MIN_LINE_LENGTH)


def _as_pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= MIN_LENGTH_INSIDE_WORDS else rf"(?<!\w){escaped}(?!\w)"
