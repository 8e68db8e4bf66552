"""The checks of `make spec`: module, constants that differ from its .cfg, and the expected result."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Check:
    module: str
    """spec/<module>.tla, checked as spec/MC<module>.tla with spec/<module>.cfg."""
    name: str
    constants: Mapping[str, str] = field(default_factory=dict)
    violates: str | None = None
    """The invariant that must be violated. None: no error."""
    large: Mapping[str, str] = field(default_factory=dict)
    """Further constants when the bounds are large."""
    alone: bool = False
    """True: only the invariant that must be violated is checked, because others of the .cfg are violated earlier."""
    properties: tuple[str, ...] = ()
    """Liveness properties. They are checked without the invariants."""
    symmetric: bool = True
    weight: int = 0
    """Checks with a greater weight take longer and are started earlier."""

    @property
    def invariants(self) -> tuple[str, ...]:
        """Invariants that replace those of the .cfg; () keeps them."""
        return (self.violates,) if self.alone and self.violates is not None else ()

    @property
    def expected(self) -> str:
        return "holds" if self.violates is None else f"violates {self.violates}"


EXACT, REPLAY = {"Source": '"exact"'}, {"Source": '"replay"'}
ONCE = {"MaxAgain": "0"}
TRUNCATE = {"MaxTruncate": "1"}
JOIN = {**ONCE, "Joining": "{t2}", "TableOf": "<- TwoTables"}
MORE = {"MaxTx": "3"}
CRASH = {"MaxCrash": "1"}
TRUE, FALSE = "TRUE", "FALSE"

LANES = (
    Check("Lanes", "exact, with reading again", EXACT, large={**MORE, **CRASH}, weight=5),
    Check("Lanes", "replay, with reading again", REPLAY, large={**MORE, **CRASH}, weight=6),
    Check("Lanes", "exact, a crash", {**EXACT, **ONCE, **CRASH}, large=MORE, weight=3),
    Check("Lanes", "replay, a crash", {**REPLAY, **ONCE, **CRASH}, large=MORE, weight=4),
    Check("Lanes", "exact, TRUNCATE", {**EXACT, **ONCE, **TRUNCATE}, large={**MORE, "MaxAgain": "1"}, weight=2),
    Check("Lanes", "replay, TRUNCATE", {**REPLAY, **ONCE, **TRUNCATE}, large={**MORE, "MaxAgain": "1"}, weight=2),
    Check("Lanes", "exact, a table joins", {**EXACT, **JOIN}, large=MORE, symmetric=False, weight=7),
    Check("Lanes", "replay, a table joins", {**REPLAY, **JOIN}, large=MORE, symmetric=False, weight=8),
    Check("Lanes", "exact: every split gets live", {**EXACT, **JOIN, "MaxTx": "1"}, properties=("Ends",), weight=3),
    Check("Lanes", "replay: every split gets live", {**REPLAY, **JOIN, "MaxTx": "1"}, properties=("Ends",), weight=3),
    Check("Lanes", "Hasty: planned ahead of visibility", {**EXACT, **ONCE, "Hasty": TRUE}, "NothingLost"),
    Check("Lanes", "Hasty, replay: a joining table", {**REPLAY, **JOIN, "Hasty": TRUE}, "NothingLost", symmetric=False),
    Check("Lanes", "Early: the base is taken when rows are written", {**EXACT, **ONCE, "Early": TRUE}, "NothingLost"),
    Check("Lanes", "Blind: rows read again are taken in too early", {**EXACT, "Blind": TRUE}, "NeverStale"),
    Check(
        "Lanes",
        "Whole: TRUNCATE of splits that are not live",
        {**EXACT, **ONCE, **TRUNCATE, "Whole": TRUE},
        "NothingTwice",
    ),
    Check(
        "Lanes",
        "Unlocked: the snapshot is older than the lock",
        {**EXACT, **ONCE, **TRUNCATE, "Unlocked": TRUE},
        "NothingTwice",
    ),
    Check(
        "Lanes",
        "Impatient: joined before open transactions end",
        {**EXACT, **JOIN, "Impatient": TRUE},
        "NothingLost",
        symmetric=False,
    ),
)

POSITION, SNAPSHOT = {"Method": '"position"'}, {"Method": '"snapshot"'}
MORE_XA = {"MaxTx": "4", "MaxXa": "2"}
XA = (
    Check("XA", "log_status, settled", POSITION, large=MORE_XA),
    Check("XA", "consistent snapshot, settled", SNAPSHOT, large=MORE_XA),
    Check("XA", "log_status: the copy gets there", {**POSITION, "MaxTx": "2"}, properties=("Ends",)),
    Check("XA", "consistent snapshot: the copy gets there", {**SNAPSHOT, "MaxTx": "2"}, properties=("Ends",)),
    Check("XA", "Naive: log_status as it is", {**POSITION, "Naive": TRUE}, "TrueRows"),
    Check("XA", "Naive: the consistent snapshot as it is", {**SNAPSHOT, "Naive": TRUE}, "TrueRows"),
    Check("XA", "Naive: the change is lost for good", {**POSITION, "Naive": TRUE}, "NothingLost", alone=True),
    Check("XA", "Unasked: a start that XA RECOVER was not asked about", {**POSITION, "Unasked": TRUE}, "TrueRows"),
    Check(
        "XA",
        "Unasked: the log lane meets an unknown transaction",
        {**POSITION, "Unasked": TRUE},
        "NeverStopped",
        alone=True,
    ),
    Check("XA", "Skipping: a replay without the prepared rows", {**POSITION, "Skipping": TRUE}, "TrueRows"),
)

BACK = {"MaxBack": "1"}
ONE_OWNER = {"MaxOwner": "1"}
FENCE = (
    Check("Fence", "late writers", large={"MaxEpoch": "3"}, weight=2),
    Check("Fence", "one driver, a target that is set back", {**BACK, **ONE_OWNER}, large={"MaxEpoch": "3"}, weight=2),
    Check("Fence", "the copy gets there, or the job stops", {**BACK, **ONE_OWNER, "Late": FALSE}, properties=("Ends",)),
    Check("Fence", "Fence = FALSE: a late driver", {"Fence": FALSE}, "NeverBack"),
    Check("Fence", "Ordered = FALSE: a late task", {"Ordered": FALSE}, "NeverBack"),
    Check(
        "Fence",
        "Ordered = FALSE: a target that is set back",
        {**BACK, "Ordered": FALSE, "Late": FALSE},
        "NothingLost",
        alone=True,
    ),
    Check(
        "Fence",
        "Trusting: what tasks said, of a target set back since",
        {**BACK, **ONE_OWNER, "Trusting": TRUE},
        "NothingLost",
        alone=True,
    ),
    Check("Fence", "Forgetful: the ledger forgets a split while its owner rules", {"Forgetful": TRUE}, "NeverBack"),
)

TIDEMARK = (
    Check("Tidemark", "replay", REPLAY, large=MORE, weight=5),
    Check("Tidemark", "exact", EXACT, large=MORE, weight=3),
    Check("Tidemark", "Naive: low is the log's end", {**REPLAY, "Naive": TRUE}, "NothingLost"),
    Check(
        "Tidemark", "Late: a log range ends at what is visible when it is read", {**REPLAY, "Late": TRUE}, "NothingLost"
    ),
)

CHECKS = LANES + XA + FENCE + TIDEMARK
