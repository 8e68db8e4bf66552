"""The job file's key `sink.on_schema_change`: what happens to a copy for each kind of change of its table."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field

from tidemark.conf.section import Section, Written, refuse

Kind = Literal["add_column", "drop_column", "rename_column", "change_type", "truncate", "drop_table"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SCHEMA_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "truncate")
"""The kinds that are not an ordinary change in the log, as TRUNCATE is."""
SCHEMA_CHANGE_FORM = "evolve | stop, or kinds like {add_column: ignore, truncate: stop}"

_WHY_NOT_IGNORED = {
    "rename_column": "the column's values come under its new name, and the copy would get none of them",
    "change_type": "the copy's column need not hold the new values",
}


def _may_be_ignored(value: Any) -> Any:
    if value not in ("evolve", "stop", "ignore"):
        raise refuse("must be evolve | stop | ignore", choices=("evolve", "stop", "ignore"))
    return value


def _may_not_be_ignored(kind: Kind) -> BeforeValidator:
    def check(value: Any) -> Any:
        if value == "ignore":
            raise refuse(f"must not be ignore: {_WHY_NOT_IGNORED[kind]}. Allowed: evolve, stop")
        if value not in ("evolve", "stop"):
            raise refuse("must be evolve | stop", choices=("evolve", "stop"))
        return value

    return BeforeValidator(check)


def _may_be_dropped(value: Any) -> Any:
    if value not in ("evolve", "drop", "stop", "ignore"):
        raise refuse("must be evolve | drop | stop | ignore", choices=("evolve", "drop", "stop", "ignore"))
    return value


_MayBeIgnored = Annotated[Literal["evolve", "stop", "ignore"], BeforeValidator(_may_be_ignored)]


class SchemaChanges(Section):
    """A policy for each kind of change; kinds that are not named have `evolve`. If a change has several kinds,
    and one of them has `stop`, the change has `stop`. If Tidemark can't tell the kind, such as for DROP PARTITION, the change
    has `stop` if any kind has `stop`, or if `truncate` has `ignore`. May be changed at any time.
    """

    words: ClassVar[tuple[str, ...]] = ("evolve", "stop")

    add_column: _MayBeIgnored = Field(
        "evolve",
        description="`evolve`: the copy gets the column. `ignore`: the column is not copied, as if `source.columns` excluded "
        "it. To copy it later, write `evolve` and run `tidemark signal JOB.yaml resnapshot --table NAME`.",
    )
    drop_column: Annotated[Literal["evolve", "drop", "stop", "ignore"], BeforeValidator(_may_be_dropped)] = Field(
        "evolve",
        description="`evolve` and `ignore` are the same: the copy keeps the column, and no longer writes it. If the table is "
        "read again, the column is NULL in all rows. `drop`: a mirror drops the column, too, with its values. If an index or "
        "a view of the copy needs the column, the table is parked. Columns that the copy has kept before stay. With files, "
        "`drop` is `evolve`: new files lack the column in any case. Not for `sink.type: delta`.",
    )
    rename_column: Annotated[Literal["evolve", "stop"], _may_not_be_ignored("rename_column")] = Field(
        "evolve",
        description="`evolve`: the table is read again, and the copy gets a column of the new name. `ignore` is refused: "
        f"{_WHY_NOT_IGNORED['rename_column']}. MySQL, MariaDB: a table that got and lost columns may have a renamed one.",
    )
    change_type: Annotated[Literal["evolve", "stop"], _may_not_be_ignored("change_type")] = Field(
        "evolve",
        description="Another type, character set, or NULL instead of NOT NULL. `evolve`: the copy gets the type. `ignore` is "
        f"refused: {_WHY_NOT_IGNORED['change_type']}.",
    )
    truncate: _MayBeIgnored = Field(
        "evolve",
        description="`evolve`: the copy is emptied. `stop`: `source.on_table_error` says what happens. `ignore`: the copy "
        "keeps its rows, until the table is read again for another reason. `tidemark reconcile` then counts rows that only "
        "the copy has, and does not report them as differences. `on_schema_change: stop` does not include this kind: a "
        "TRUNCATE is then followed.",
    )
    drop_table: _MayBeIgnored = Field(
        "evolve",
        description="The table was dropped; MySQL, MariaDB: or renamed. `evolve`: it is parked, and comes back if there is a "
        "table of that name again. `ignore`: it leaves the job, and the run ends with exit code 0. Its copy stays as it was "
        "after the job's last epoch. Only `tidemark signal JOB.yaml resnapshot --table NAME` brings the table back.",
    )

    @property
    def stops_all(self) -> bool:
        """True if no change of a schema is followed."""
        return all(getattr(self, kind) == "stop" for kind in SCHEMA_KINDS)

    def stops(self, *kinds: Kind) -> bool:
        """True if a change that has these kinds, or may have them, is to stop its table."""
        return any(getattr(self, kind) == "stop" for kind in kinds)


def _read_changes(value: Any) -> Any:
    match value:
        case "evolve" | None:
            return {}
        case "stop":  # the log has a TRUNCATE like any other change
            return dict.fromkeys(SCHEMA_KINDS, "stop")
        case "ignore":
            kinds = ", ".join(f"{kind}: ignore" for kind in KINDS if kind not in _WHY_NOT_IGNORED)
            raise refuse(
                f"must not be ignore for all kinds: {' and '.join(_WHY_NOT_IGNORED)} can't be ignored. Write {{{kinds}}}, or "
                "some of these"
            )
        case Mapping() | SchemaChanges():
            return value
        case _:
            raise refuse(f"must be {SCHEMA_CHANGE_FORM}", choices=("evolve", "stop"))


CheckedSchemaChanges = Annotated[SchemaChanges, BeforeValidator(_read_changes), Written(SCHEMA_CHANGE_FORM)]
