"""How a source orders the key by which a table is split, so that ranges of its copy can be the same ranges."""

from collections.abc import Mapping, Sequence

from tidemark.conf.model import JobFile
from tidemark.readers.source import OrdersTexts
from tidemark.state.key_order import is_text_of_postgres, source_order
from tidemark.state.table import TableSchema


def copied_orders(
    job: JobFile, schema: TableSchema, output: TableSchema, columns: tuple[str, ...], source: object
) -> Mapping[str, str] | None:
    """Returns the order of each column of the split key, in their sequence. None if it is not part of the copy's key with the
    same values, or an order is not certain. `source`: a FoundSource."""
    if not columns or job.transform(schema.table.database, schema.table.name) is not None:
        return None
    if not set(columns) <= set(output.key) or any(output.column(name).made for name in columns):
        return None
    orders = orders_now(job, schema, columns, source)
    known = {name: order for name, order in zip(columns, orders, strict=True) if order is not None}
    return known if len(known) == len(columns) else None


def orders_now(job: JobFile, schema: TableSchema, columns: Sequence[str], source: object) -> tuple[str | None, ...]:
    """Returns the columns' orders in the source. `source`: a FoundSource or SplitReading, which is asked only for texts."""
    kind = job.source.url.kind
    orders = {name: source_order(schema.column(name), kind) for name in columns}
    if kind == "postgresql" and isinstance(source, OrdersTexts):
        texts = [name for name in columns if is_text_of_postgres(schema.column(name))]
        orders |= source.text_orders(schema.table, texts) if texts else {}
    return tuple(orders[name] for name in columns)
