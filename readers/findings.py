"""What preflight found: each thing with its remedy, all of them at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from conf.tables import TableName
from state.errors import JobFileError, SourceNotUsableError, TidemarkError
from state.table import TableId

Severity = Literal["refuse", "warn"]
MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """`refuse`: the job must not start. `table` and `column` where it is about one, `setting` likewise: a
    path of keys in the job file."""

    severity: Severity
    message: str
    remedy: str
    table: TableId | None = None
    column: str | None = None
    setting: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.message} Remedy: {self.remedy}"


class SettingError(JobFileError):
    """The table is not as a setting of the job file has it. `setting`: the setting's path."""

    def __init__(self, message: str, remedy: str, setting: tuple[str, ...] = ()) -> None:
        super().__init__(message, remedy)
        self.setting = setting


def exclusion_of(table: TableId) -> tuple[str, ...]:
    """The setting that leaves out columns of the table."""
    return ("source", "columns", str(TableName(table.database, table.name)), "exclude")


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


def raise_refusals(findings: Iterable[Finding]) -> None:
    """Raises one SourceNotUsableError for all that refuse; the rest of a long list is counted."""
    refusals = [finding for finding in findings if finding.severity == "refuse"]
    if not refusals:
        return
    if len(refusals) == 1:
        raise SourceNotUsableError(refusals[0].message, refusals[0].remedy)
    named = refusals[:MOST_NAMED]
    more = f" And {len(refusals) - MOST_NAMED} more." if len(refusals) > MOST_NAMED else ""
    numbered = " ".join(f"({number}) {finding.message}" for number, finding in enumerate(named, 1))
    remedies: dict[str, list[int]] = {}
    for number, finding in enumerate(named, 1):
        remedies.setdefault(finding.remedy, []).append(number)
    raise SourceNotUsableError(
        f"{len(refusals)} things forbid the job: {numbered}{more}",
        " ".join(f"({', '.join(map(str, numbers))}) {remedy}" for remedy, numbers in remedies.items()),
    )
