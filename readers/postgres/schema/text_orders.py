"""How the server orders texts: by which library, locale and version."""

from collections.abc import Mapping, Sequence

from tidemark.readers.postgres.connect import Connection, quote_table
from tidemark.state.key_order import text_order, text_orders_query
from tidemark.state.table import TableId


def text_orders(connection: Connection, table: TableId, columns: Sequence[str]) -> Mapping[str, str | None]:
    """Returns the order of each column that holds texts, None for one that is not certain. A column that the table lacks is
    missing."""
    with connection.cursor() as cursor:
        cursor.execute(text_orders_query(connection.server_version), (quote_table(table), list(columns)))
        return {name: text_order(*facts) for name, *facts in cursor.fetchall()}


def certain(orders: Mapping[str, str | None]) -> Mapping[str, str]:
    """Returns those that are certain."""
    return {name: order for name, order in orders.items() if order is not None}
