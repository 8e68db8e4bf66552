"""The last epoch of a Delta table that was emptied for other types, by the commits that its log still has."""

import pytest
from pyspark.sql import Row

from tidemark.sinks.delta.locations import EMPTIED, LastEpoch, Location, _last_epoch, require_not_set_back
from tidemark.state.errors import CopySetBackError
from tidemark.state.table import TableId

COPY = Location("/lake/shop.t", ("spark_catalog", "delta", "/lake/shop.t"), "delta.`/lake/shop.t`", "sink.path")


def commit(version: int, metadata: str | None = None, restored: int | None = None) -> Row:
    operation = "WRITE" if restored is None else "RESTORE"
    parameters = {} if restored is None else {"version": str(restored)}
    return Row(version=version, operation=operation, operationParameters=parameters, userMetadata=metadata)


OPTIMIZE, EMPTIED_THEN = commit(10), commit(11, EMPTIED)


@pytest.mark.parametrize(
    ("later", "epoch", "version"),
    [([], 0, 0), ([commit(12, "tidemark epoch 7 after 11")], 7, 12)],
    ids=["nothing later", "epochs later"],
)
def test_a_copy_that_was_emptied_is_set_back_though_its_log_has_lost_the_epochs_before(
    later: list[Row], epoch: int, version: int
) -> None:
    commits = [*later, EMPTIED_THEN, OPTIMIZE]
    last = _last_epoch(commits, is_whole=True)
    assert last == LastEpoch(epoch, version, set_back=True, is_repairable=False, emptied=True)
    assert _last_epoch(commits) is None, "older commits may tell"
    with pytest.raises(
        CopySetBackError, match="was emptied for other types, and not all of its rows were read since"
    ) as caught:
        require_not_set_back(TableId("shop", "t"), COPY, last)
    assert "RESTORE" not in caught.value.remedy


def test_it_is_not_if_all_rows_were_replaced_since_or_the_emptying_was_taken_back() -> None:
    whole, restored = commit(12, "tidemark epoch 7 after 11 whole"), commit(12, restored=10)
    assert _last_epoch([whole, EMPTIED_THEN, OPTIMIZE], is_whole=True) == LastEpoch(7, 12, set_back=False)
    of_epoch = commit(10, "tidemark epoch 3 after 9")
    assert _last_epoch([restored, EMPTIED_THEN, of_epoch], is_whole=True) == LastEpoch(3, 10, set_back=False)
