"""The findings of preflight: every problem with its remedy, reported together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tidemark.conf.tables import TableName
from tidemark.state.errors import JobFileError, SourceNotUsableError, SourceUnavailableError, TidemarkError
from tidemark.state.table import TableId

Severity = Literal["refuse", "warn"]
MAX_NAMED = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem. `refuse`: the job must not start. `table`, `column` and `setting` (a path of keys in the job file) are
    set where the problem is about one. `passes`: it may be over soon, as a failover is; at a job's first start it refuses."""

    severity: Severity
    message: str
    remedy: str
    table: TableId | None = None
    column: str | None = None
    setting: tuple[str, ...] = ()
    passes: bool = False

    def __str__(self) -> str:
        return f"{self.message} Remedy: {self.remedy}"


class SettingError(JobFileError):
    """A setting of the job file does not fit the table. `setting`: the setting's path in the job file."""

    def __init__(self, message: str, remedy: str, setting: tuple[str, ...] = ()) -> None:
        super().__init__(message, remedy)
        self.setting = setting


def exclusion_of(table: TableId) -> tuple[str, ...]:
    """Returns the path of the setting that leaves out columns of the table."""
    return ("source", "columns", str(TableName(table.database, table.name)), "exclude")


def own_table_refused(table: TableId) -> SourceNotUsableError:
    """The error for a table of Tidemark's own that `source.tables` names."""
    return SourceNotUsableError(
        f"{table} in source.tables is a table of Tidemark's own: copying it would change it again.",
        "Take it out of source.tables. Wildcards leave it out by themselves.",
    )


def refusal(
    message: str,
    remedy: str,
    *,
    table: TableId | None = None,
    column: str | None = None,
    setting: tuple[str, ...] = (),
) -> Finding:
    return Finding("refuse", message, remedy, table, column, setting)


def warning(message: str, remedy: str, *, table: TableId | None = None) -> Finding:
    return Finding("warn", message, remedy, table)


def of_error(error: TidemarkError, *, table: TableId | None = None, column: str | None = None) -> Finding:
    setting = error.setting if isinstance(error, SettingError) else ()
    return Finding("refuse", error.message, error.remedy, table, column, setting)


def raise_passing(findings: Iterable[Finding]) -> None:
    """Raises SourceUnavailableError for the first finding that may be over soon."""
    for finding in findings:
        if finding.passes:
            raise SourceUnavailableError(finding.message, finding.remedy)


def raise_refusals(findings: Iterable[Finding], kind: type[SourceNotUsableError] = SourceNotUsableError) -> None:
    """Raises one error for all findings that refuse. It names the first MAX_NAMED and counts the others. If each is about a
    table, the error's `table` is that of the first."""
    refusals = [finding for finding in findings if finding.severity == "refuse"]
    if not refusals:
        return
    if len(refusals) == 1:
        raise kind(refusals[0].message, refusals[0].remedy, refusals[0].table)
    named = refusals[:MAX_NAMED]
    more = f" And {len(refusals) - MAX_NAMED} more." if len(refusals) > MAX_NAMED else ""
    numbered = " ".join(f"({number}) {finding.message}" for number, finding in enumerate(named, 1))
    remedies: dict[str, list[int]] = {}
    for number, finding in enumerate(named, 1):
        remedies.setdefault(finding.remedy, []).append(number)
    raise kind(
        f"The job can't start: {len(refusals)} problems. {numbered}{more}",
        " ".join(f"({', '.join(map(str, numbers))}) {remedy}" for remedy, numbers in remedies.items()),
        named[0].table if all(finding.table is not None for finding in refusals) else None,
    )
