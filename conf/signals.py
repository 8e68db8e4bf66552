"""The job file's section `signals`: a table of the source whose rows are signals."""

from pydantic import Field

from tidemark.conf.section import Flag, Section
from tidemark.conf.source import NameOfTable


class Signals(Section):
    """Takes signals also from a table of the source, for people who can write SQL and can't run `tidemark signal`. It is read,
    never written. See [Signals by SQL](operating.md#signals-by-sql).
    """

    table: NameOfTable = Field(
        description="The table, with columns `id`, `type` and `data`. Each row that is inserted is a signal. Everybody "
        "who may insert rows can steer the job.",
        examples=["shop.tidemark_signals"],
    )
    conditions: Flag = Field(
        False,
        description="Whether rows may have conditions (`where`). The source runs them with the rights of the job's account: "
        "allow them only if everybody who may insert rows may also read everything that this account can read.",
    )
