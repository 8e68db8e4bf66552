"""Runs a failed test once more if a shared server that it used died during it, and says so loudly.

MariaDB 10.11.19 was seen to crash (SIGSEGV) under the suite, and every test on the shared server failed with it. Nothing
else is tried twice: a test that fails while its servers live is a failure, and so is one that fails the second time.
"""

import time

import pytest
from _pytest.runner import runtestprotocol  # as pytest-rerunfailures does; there is no public way

from tests.support.server_broker import DeathsAsked, ServerDeath, ask_for_deaths
from tests.support.servers import BROKER, USED

ATTRIBUTE = "server_deaths"
"""The name of a property of a report of a test's second run: what died. pytest-xdist carries it to the controlling process."""


class SecondRuns:
    """Prints in the controlling process which tests ran again, and why, at the end of the run."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if (reason := getattr(report, ATTRIBUTE, None)) is not None:
            self.reasons[report.nodeid] = reason

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.reasons:
            return
        terminalreporter.section("A SHARED DATABASE SERVER DIED; these tests ran again", sep="!", red=True, bold=True)
        for node_id, reason in self.reasons.items():
            terminalreporter.line(node_id, red=True)
            terminalreporter.line(reason)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondRuns(), "second runs")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in _run(item, nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _run(item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    started, used = time.monotonic(), item.config.stash[USED]
    used.clear()
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if not any(report.failed for report in reports):
        return reports
    deaths = _find_deaths(item.config, DeathsAsked(frozenset(used), started))
    if not deaths:
        return reports
    # Fixtures of the module or the session may hold a broken connection.
    teardown = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(None), when="teardown")
    if teardown.excinfo is not None:
        return [*reports, item.ihook.pytest_runtest_makereport(item=item, call=teardown)]
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        setattr(report, ATTRIBUTE, "\n".join(_describe(death) for death in deaths))
    return reports


def _find_deaths(config: pytest.Config, asked: DeathsAsked) -> tuple[ServerDeath, ...]:
    if not asked.servers:
        return ()
    if hasattr(config, "workerinput"):
        return ask_for_deaths(*config.workerinput["server_broker"], asked)
    return config.stash[BROKER].find_deaths(asked)


def _describe(death: ServerDeath) -> str:
    options = " ".join(f"{name}={value}" for name, value in death.wanted.options)
    name = " ".join(part for part in (death.wanted.kind, death.wanted.version, options) if part)
    return f"{name} ended with {death.exit_code}. The end of its log:\n{death.log_end}"
