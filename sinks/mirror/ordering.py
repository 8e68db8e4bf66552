"""Whether a copy has the order of keys by which its source is split (docs/adr/0055)."""

from collections.abc import Mapping

from tidemark.sinks.mirror.target import Session, TargetName, TargetTable


def orders_alike(session: Session, target: TargetName, existing: TargetTable, orders: Mapping[str, str | None]) -> bool:
    """True if the table orders each of these columns as the source does. `orders`: those of the source, None for one that is
    not certain."""
    here = session.key_orders(target, existing, tuple(orders))
    return all(order in found for order, found in zip(orders.values(), here, strict=True))
