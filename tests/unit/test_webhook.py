"""`notify.webhook`: what is posted, how often, and how long a run waits for it. The receiver is a real HTTP server."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.job_file import SMALL, load_text, problems_of
from tests.support.receiver import HANG, receiving
from tidemark.conf.load import load_job_file
from tidemark.conf.redaction import forget_secrets, redact
from tidemark.jobs.monitoring import webhook
from tidemark.jobs.monitoring.events import Notes
from tidemark.jobs.monitoring.progress import JobProgress
from tidemark.jobs.monitoring.run_summary import RunSummary
from tidemark.jobs.monitoring.webhook import notifying
from tidemark.state.errors import (
    JobHeldError,
    PausedError,
    SourceUnavailableError,
    TablesParkedError,
    TidemarkError,
)

DOWN = SourceUnavailableError("The source db:3306 is out of reach.", "Check the server.")
PARKED = {"table": "shop.orders", "text": "A value does not fit."}


class Told:
    """Events of a run, in the main thread."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []

    def note(self, event: str, **facts: Any) -> None:
        self.found.append((event, facts))

    def progress(self, progress: JobProgress) -> None:
        raise AssertionError

    @property
    def warnings(self) -> list[str]:
        return [facts["text"] for event, facts in self.found if event == "warning"]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits; the ways are the same."""
    monkeypatch.setattr(webhook, "ATTEMPT_SECONDS", 0.3)
    monkeypatch.setattr(webhook, "RETRY_DELAYS_SECONDS", (0.05, 0.05))
    monkeypatch.setattr(webhook, "FAREWELL_SECONDS", 3.0)


def run(
    folder: Path,
    url: str,
    error: BaseException | None,
    parked: Sequence[dict[str, str]] = (),
    on: str = "",
) -> Told:
    """A run that parks tables and then ends with the error, or without one."""
    told, notes = Told(), Notes()
    job = load_text(folder, SMALL + f"notify:\n  webhook: {url}\n{on}")

    def ends() -> None:
        with notifying(job, told, notes, RunSummary(job="shop", epochs=3)) as events:
            for facts in parked:
                events.note("parked", **facts)
            if error is not None:
                raise error

    if error is None:
        ends()
        return told
    with pytest.raises(type(error)) as caught:
        ends()
    assert caught.value is error
    return told


def test_a_failed_run_is_posted_once(tmp_path: Path) -> None:
    with receiving() as receiver:
        told = run(tmp_path, receiver.url, DOWN)
    (body,) = receiver.bodies
    assert receiver.methods == ["POST"]
    assert body.pop("at").endswith("+00:00")
    assert body.pop("seconds") >= 0
    assert body == {
        "event": "failed",
        "job": "shop",
        "exit_code": 7,
        "interrupted": False,
        "phase": "",
        "epochs": 3,
        "rows": 0,
        "changes": 0,
        "bad_values": 0,
        "position": "",
        "cause": DOWN.message,
        "remedy": DOWN.remedy,
        "text": f"{DOWN.message} Remedy: {DOWN.remedy}",
    }
    assert told.found == []


@pytest.mark.parametrize(
    "error", [None, JobHeldError("Held.", "Wait."), PausedError("Paused.", "Resume."), KeyboardInterrupt()]
)
def test_what_is_no_failure_is_not_posted(tmp_path: Path, error: BaseException | None) -> None:
    with receiving() as receiver:
        assert run(tmp_path, receiver.url, error).found == []
    assert receiver.bodies == []


def test_a_parked_table_is_posted_once_and_its_run_is_no_second_failure(tmp_path: Path) -> None:
    ended = TablesParkedError("1 table is parked.", "Give a signal.")
    with receiving() as receiver:
        told = run(tmp_path, receiver.url, ended, [PARKED, PARKED, {**PARKED, "table": "shop.notes"}])
    assert [(body["event"], body["job"], body["table"]) for body in receiver.bodies] == [
        ("parked", "shop", "shop.orders"),
        ("parked", "shop", "shop.notes"),
    ]
    assert [event for event, _ in told.found] == ["parked"] * 3
    with receiving() as receiver:
        run(tmp_path, receiver.url, ended)
    assert receiver.events == ["failed"]


@pytest.mark.parametrize(("on", "expected"), [("[failed]", ["failed"]), ("[parked]", ["parked"])])
def test_only_what_is_asked_for_is_posted(tmp_path: Path, on: str, expected: list[str]) -> None:
    with receiving() as receiver:
        run(tmp_path, receiver.url, TablesParkedError("Parked.", "Signal."), [PARKED], on=f"  on: {on}\n")
    assert receiver.events == expected


@pytest.mark.parametrize(
    ("statuses", "attempts", "is_delivered"),
    [([500], 3, False), ([500, 503, 200], 3, True), ([429, 204], 2, True), ([404], 1, False), ([302], 1, False)],
)
def test_errors_of_the_receiver_that_may_pass_are_tried_again(
    tmp_path: Path, statuses: list[int], attempts: int, is_delivered: bool
) -> None:
    with receiving(*statuses) as receiver:
        told = run(tmp_path, receiver.url, DOWN)
    assert receiver.methods == ["POST"] * attempts
    assert len({json.dumps(body) for body in receiver.bodies}) == 1
    last = statuses[-1]
    expected = (
        [] if is_delivered else [f"notify.webhook: the event failed was not delivered: the receiver answered {last}"]
    )
    assert told.warnings == expected


def test_a_receiver_that_hangs_does_not_hold_up_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "ATTEMPT_SECONDS", 60.0)
    monkeypatch.setattr(webhook, "FAREWELL_SECONDS", 0.5)
    many = [{**PARKED, "table": f"shop.t{number}"} for number in range(webhook.MAX_WAITING + 20)]
    with receiving(HANG) as receiver:
        began = time.monotonic()
        told = run(tmp_path, receiver.url, None, many)
        seconds = time.monotonic() - began
    assert seconds < 5
    assert len(receiver.bodies) == 1
    assert told.warnings == [f"notify.webhook: {len(many)} events were not delivered in time"]


def test_an_attempt_ends_although_the_receiver_hangs(tmp_path: Path) -> None:
    with receiving(HANG, 200) as receiver:
        assert run(tmp_path, receiver.url, DOWN).warnings == []
    assert receiver.events == ["failed", "failed"]


def test_nobody_who_listens_is_told_by_a_warning(tmp_path: Path) -> None:
    with receiving() as receiver:
        pass
    assert run(tmp_path, receiver.url, DOWN).warnings == [
        "notify.webhook: the event failed was not delivered: Connection refused"
    ]


def test_the_failure_comes_before_parked_tables_that_still_wait(tmp_path: Path) -> None:
    many = [{**PARKED, "table": f"shop.t{number}"} for number in range(9)]
    with receiving(500, 200) as receiver:
        run(tmp_path, receiver.url, DOWN, many)
    assert receiver.events.index("failed") <= 3
    assert receiver.events.count("parked") >= 9


def test_no_value_and_no_secret_is_posted(tmp_path: Path) -> None:
    unexpected = ValueError("the row has pa55word and 4711")
    with receiving() as receiver:
        run(tmp_path, receiver.url, unexpected)
        run(tmp_path, receiver.url, TidemarkError("The login pa55word was refused.", "See."))
    causes = [body["cause"] for body in receiver.bodies]
    assert causes == ["unexpected: ValueError.", "The login *** was refused."]
    assert not any("4711" in json.dumps(body) or "pa55word" in json.dumps(body) for body in receiver.bodies)


def test_the_url_is_a_secret(tmp_path: Path) -> None:
    forget_secrets()
    url = "https://hooks.example.com/services/T0000AAAA1111/s3cretPartOfTheUrl"
    environ = {"ALERTS_URL": url}
    job = load_text(tmp_path, SMALL + "notify: {webhook: '${ALERTS_URL}'}\n", environ=environ)
    assert job.notify is not None
    assert job.notify.webhook.get_secret_value() == url
    assert job.notify.on == ("failed", "parked")
    assert "s3cretPart" not in f"{job!r} {job.redacted()} {job.model_dump_json()}"
    assert redact(f"POST {url}") == "POST ***"
    assert redact("no route /services/T0000AAAA1111/s3cretPartOfTheUrl") == "no route /services/***/***"
    text = SMALL + "notify: {webhook: 'ftp://s3cretPartOfTheUrl/'}\n"
    (problem,) = problems_of(tmp_path, text)
    assert problem.startswith("job.yaml:9: notify.webhook: must be a URL like https://host/path; other")
    forget_secrets()


@pytest.mark.parametrize("written", ["${ALERTS_URL}", "file:/run/secrets/alerts", "https://h/${TOKEN}"])
def test_commands_that_read_the_checkpoint_alone_need_no_url(tmp_path: Path, written: str) -> None:
    (tmp_path / "job.yaml").write_text(SMALL + f"notify: {{webhook: '{written}'}}\n")
    assert load_job_file(tmp_path / "job.yaml", environ={}, connects=False).notify is not None


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("{webhook: 'https://user:name@host/'}", "notify.webhook: has a login, which is not sent"),
        ("{webhook: 'https:///path'}", "notify.webhook: must be a URL like https://host/path"),
        ("{webhook: 'https://host:x/'}", "notify.webhook: must be a URL like https://host/path"),
        ("{webhook: 'https://host/a b'}", "notify.webhook: must be a URL like https://host/path"),
        ("{on: [failed]}", "notify.webhook: is missing"),
        ("{webhook: 'https://host/', on: []}", "notify.on: must be a list of failed, parked"),
        ("{webhook: 'https://host/', on: [failed, failed]}", "notify.on: names one of them twice"),
        ("{webhook: 'https://host/', on: [parkd]}", "notify.on[0]: must be failed | parked; found: parkd. Did you"),
    ],
)
def test_mistakes_are_refused(tmp_path: Path, section: str, problem: str) -> None:
    (found,) = problems_of(tmp_path, SMALL + f"notify: {section}\n")
    assert found.startswith(f"job.yaml:9: {problem}")


@pytest.mark.parametrize(
    ("url", "warns"), [("http://alerts.example.com/", True), ("http://localhost:9/", False), ("https://h/", False)]
)
def test_clear_text_is_warned_of(tmp_path: Path, url: str, warns: bool) -> None:
    job = load_text(tmp_path, SMALL + f"notify: {{webhook: '{url}'}}\n")
    assert any(text.startswith("notify.webhook: without https") for text in job.warnings()) == warns
