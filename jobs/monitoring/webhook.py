"""Events that are posted to the job file's `notify.webhook`, by a thread of their own: the job never waits for the receiver
while it runs, and at its end for FAREWELL_SECONDS at most. A warning names each event that can't be delivered."""

import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import IO, Any

from tidemark import __version__
from tidemark.conf.model import JobFile
from tidemark.conf.notify import Notify
from tidemark.conf.redaction import redact, redact_values
from tidemark.jobs.monitoring.ending import INTERRUPTED, ending_without_values
from tidemark.jobs.monitoring.events import Events, Notes
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.state.errors import JobHeldError, PausedError, TablesParkedError

ATTEMPT_SECONDS = 5.0
RETRY_DELAYS_SECONDS = (1.0, 3.0)
"""The delay before each attempt after the first."""
FAREWELL_SECONDS = 10.0
MAX_WAITING = 100
"""The number of events that wait for the receiver. Those beyond are left out, and counted in a warning."""

_NO_FAILURES = frozenset({JobHeldError.exit_code, PausedError.exit_code, INTERRUPTED})

Body = dict[str, Any]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the event."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


class Webhook:
    """Posts events in order, until `close`. `warn` is called from the thread that posts."""

    def __init__(self, settings: Notify, warn: Callable[[str], None]) -> None:
        self._url = settings.webhook
        self._warn = warn
        self._waiting: deque[Body] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._left_out = 0
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._thread = threading.Thread(target=self._post_all, name="tidemark webhook", daemon=True)
        self._thread.start()

    def send(self, body: Body, *, first: bool = False) -> None:
        """Queues an event; `first`: before those that wait."""
        with self._changed:
            if first:
                self._waiting.appendleft(body)
            elif len(self._waiting) < MAX_WAITING:
                self._waiting.append(body)
            else:
                self._left_out += 1
            self._changed.notify()

    def close(self) -> None:
        """Waits until all events are delivered or given up, FAREWELL_SECONDS at most. An interruption ends the wait."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        with contextlib.suppress(KeyboardInterrupt):
            self._thread.join(FAREWELL_SECONDS)
        with self._changed:
            lost = len(self._waiting) + self._left_out + self._thread.is_alive()
            self._waiting.clear()
        if lost:
            self._warn(f"notify.webhook: {lost} {'event was' if lost == 1 else 'events were'} not delivered in time")

    def _post_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_closing:
                    self._changed.wait()
                if not self._waiting:
                    return
                body = self._waiting.popleft()
            trouble = self._delivered(body)
            if trouble:
                self._warn(f"notify.webhook: the event {body['event']} was not delivered: {trouble}")

    def _delivered(self, body: Body) -> str:
        """Returns the trouble of the last attempt, or nothing once the receiver has the event."""
        trouble, is_final = self._attempt(body)
        for delay in RETRY_DELAYS_SECONDS:
            if not trouble or is_final:
                break
            time.sleep(delay)
            trouble, is_final = self._attempt(body)
        return trouble

    def _attempt(self, body: Body) -> tuple[str, bool]:
        """Returns the trouble, or nothing, and whether another attempt is useless. No text of the receiver is passed on: it
        may repeat what it got."""
        request = urllib.request.Request(
            self._url.get_secret_value(),
            json.dumps(redact_values(body)).encode(),
            {"Content-Type": "application/json", "User-Agent": f"tidemark/{__version__}"},
        )
        try:
            with self._opener.open(request, timeout=ATTEMPT_SECONDS):
                return "", True
        except urllib.error.HTTPError as error:
            error.close()
            return f"the receiver answered {error.code}", error.code < 500 and error.code not in (408, 429)
        except urllib.error.URLError as error:
            reason = error.reason
            return redact(
                reason.strerror or type(reason).__name__ if isinstance(reason, OSError) else str(reason)
            ), False
        except TimeoutError:
            return f"no answer in {ATTEMPT_SECONDS:g} s", False
        except (OSError, http.client.HTTPException, ValueError) as error:
            return type(error).__name__, False


class NotifyingEvents:
    """Passes events on and also posts `parked`, once for each table and reason. Implements `events.Events`."""

    def __init__(self, events: Events, job: JobFile, send: Callable[[Body], None]) -> None:
        self._events = events
        self._job = job.job
        self._send = send
        self.told: set[tuple[str, str]] = set()

    def note(self, event: str, **facts: Any) -> None:
        self._events.note(event, **facts)
        what = (str(facts.get("table", "")), str(facts.get("text", "")))
        if event == "parked" and what not in self.told:
            self.told.add(what)
            self._send(_body(event, self._job, facts))

    def progress(self, progress: JobProgress) -> None:
        self._events.progress(progress)


@contextmanager
def notifying(job: JobFile, events: Events, notes: Notes, summary: RunSummary) -> Iterator[Events]:
    """Posts the events of the run inside to the job file's `notify.webhook`, if it has one. Raises what the run raises."""
    if job.notify is None:
        yield events
        return
    wanted, began = job.notify.on, time.monotonic()
    webhook = Webhook(job.notify, lambda text: notes.add("warning", text=text))
    told = NotifyingEvents(events, job, webhook.send)
    try:
        yield told if "parked" in wanted else events
    except (Exception, KeyboardInterrupt) as error:
        ending = ending_without_values(error)
        is_told = isinstance(error, TablesParkedError) and bool(told.told)
        if "failed" in wanted and ending.exit_code not in _NO_FAILURES and not is_told:
            facts = summary.as_dict() | {"exit_code": ending.exit_code, "cause": ending.cause, "remedy": ending.remedy}
            facts["seconds"] = round(time.monotonic() - began, 3)
            del facts["tables"]  # may be long
            webhook.send(_body("failed", job.job, facts | {"text": ending.last_line}), first=True)
        raise
    finally:
        webhook.close()
        notes.pass_on(events)


def _body(event: str, job: str, facts: Mapping[str, Any]) -> Body:
    moment = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return {"at": moment, "event": event, "job": job, **{key: value for key, value in facts.items() if key != "job"}}
