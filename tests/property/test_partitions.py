"""Leaves that came, went or were rewritten between two looks, against a model that is told what happened."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from tidemark.readers.postgres.partitions.catalog import differences
from tidemark.readers.postgres.partitions.checks import Origin, earlier_rows
from tidemark.state.partitions import Partition, Partitions, WatchedTable
from tidemark.state.table import TableId

ROOT = 1


@dataclass
class Tree:
    """Relations by oid, attached or not. `touched`: leaves that may have other rows than at the first look, though the
    log has no change of them."""

    numbers: Iterator[int] = field(default_factory=lambda: count(10))
    parents: dict[int, tuple[int, int] | None] = field(default_factory=dict)
    filenodes: dict[int, int | None] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    rewritten: set[int] = field(default_factory=set)

    def do(self, action: str, pick: int) -> None:
        branches = [ROOT, *(oid for oid, filenode in self.filenodes.items() if filenode is None and self.is_there(oid))]
        there = [oid for oid in self.parents if self.parents[oid] is not None]
        loose = [oid for oid in self.parents if self.parents[oid] is None]
        match action:
            case "leaf" | "branch":
                oid = next(self.numbers)
                self.filenodes[oid] = oid if action == "leaf" else None
                self.attach(oid, branches[pick % len(branches)])
            case "detach" if there:
                oid = there[pick % len(there)]
                self.touched |= self.below(oid)
                self.parents[oid] = None
            case "attach" if loose:
                oid = loose[pick % len(loose)]
                fitting = [branch for branch in branches if branch not in self.all_below(oid)]
                self.attach(oid, fitting[pick % len(fitting)])
            case "rewrite" if leaves := sorted(self.below(ROOT)):
                oid = leaves[pick % len(leaves)]
                self.filenodes[oid] = next(self.numbers)
                self.rewritten.add(oid)

    def attach(self, oid: int, parent: int) -> None:
        self.parents[oid] = (parent, next(self.numbers))
        self.touched |= self.below(oid)

    def all_below(self, oid: int) -> set[int]:
        found = {oid}
        while more := {child for child, up in self.parents.items() if up and up[0] in found} - found:
            found |= more
        return found

    def below(self, oid: int) -> set[int]:
        """The leaves below a relation."""
        return {child for child in self.all_below(oid) if self.filenodes.get(child) is not None}

    def is_there(self, oid: int) -> bool:
        return oid in self.all_below(ROOT)

    def look(self) -> WatchedTable:
        found = []
        for oid in sorted(self.all_below(ROOT) - {ROOT}):
            up = self.parents[oid]
            assert up is not None
            found.append(Partition(oid, up[0], f"p{oid}", up[1], self.filenodes[oid]))
        return WatchedTable(TableId("s", "t"), ROOT, tuple(found))


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["leaf", "branch", "leaf", "detach", "attach", "rewrite"]), st.integers(0, 1000)),
    max_size=12,
)


@given(first=ACTIONS, then=ACTIONS)
def test_each_leaf_is_the_same_or_is_named(first: list[tuple[str, int]], then: list[tuple[str, int]]) -> None:
    tree = Tree()
    for action in first:
        tree.do(*action)
    before, leaves_before = tree.look(), tree.below(ROOT)
    earlier = tree.rewritten
    tree.touched, tree.rewritten = set(), set()
    for action in then:
        tree.do(*action)
    now, leaves_now = tree.look(), tree.below(ROOT)
    found = differences(before, now)
    assert {a.leaf.oid for a in found.attached} == leaves_now & tree.touched
    assert {p.oid for p in found.removed} == leaves_before & tree.touched
    rewritten = {
        oid for oid in leaves_now if oid in (tree.rewritten if oid in leaves_before else tree.rewritten | earlier)
    }
    assert {p.oid for p in found.rewritten} == rewritten
    known = {(p.oid, p.parent_oid, p.attached_xid) for p in before.partitions}
    for attached in found.attached:
        way = {attached.leaf.oid: attached.leaf}
        by_oid = {p.oid: p for p in now.partitions}
        at = attached.leaf
        while (above := by_oid.get(at.parent_oid)) is not None:
            way[above.oid], at = above, above
        expected = {p.oid for p in way.values() if (p.oid, p.parent_oid, p.attached_xid) not in known}
        assert {edge.oid for edge in attached.edges} == expected
        assert expected


def test_only_a_relation_that_was_born_a_partition_had_no_rows_for_certain() -> None:
    born = Origin(7, 5, disturbed=False, created_xid=7, created_command=2, born_attached=True)
    together = Origin(7, 5, disturbed=False, created_xid=7, created_command=2, born_attached=False)
    assert earlier_rows(born, born) is None
    rows = earlier_rows(together, together)
    assert rows is not None
    assert rows.in_doubt is not None
    for other in (
        Origin(7, 5, disturbed=True, created_xid=7, created_command=2, born_attached=False),
        Origin(8, 5, disturbed=False, created_xid=7, created_command=2, born_attached=False),
    ):
        certain = earlier_rows(other, other)
        assert certain is not None
        assert certain.in_doubt is None


def test_tables_that_join_are_looked_at_with_the_others() -> None:
    a, b = (WatchedTable(TableId("s", name), oid, ()) for name, oid in (("a", 1), ("b", 2)))
    looked = Partitions(50, (a,))
    assert looked.plus(None) is looked
    assert looked.plus(Partitions(9, (a,))) is looked
    assert looked.plus(Partitions(9, (a, b))) == Partitions(9, (a, b))
