"""The log of a real server, read through a slot."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

import psycopg2

from conf.endpoint import Endpoint
from conf.source import Tls
from readers.postgres.connect import connect
from readers.postgres.log_stream import LogStream, meaning, peek_query
from readers.postgres.slot import LogPlace, check_place, check_slot
from state.position import WalPosition


@dataclass(frozen=True, slots=True)
class ServerLog:
    """`log_source.LogSource`."""

    endpoint: Endpoint
    tls: Tls | None
    place: LogPlace

    def open(self, start: WalPosition, stop: WalPosition) -> LogStream:
        connection = connect(self.endpoint, self.tls)
        try:
            check_slot(connection, self.place, start, until=stop)
        except psycopg2.Error as exc:
            connection.close()
            raise meaning(exc, connection) from exc
        except BaseException:
            connection.close()
            raise
        query = peek_query(self.place.slot, self.place.publication, stop)
        # Once more when all was read: what lay before the slot's place would have been left out silently.
        return LogStream(connection, query, lambda: check_place(connection, self.place.slot, start))

    def type_names(self, types: Collection[tuple[int, int]]) -> Mapping[tuple[int, int], str]:
        """Those of all tables, so that it need not be asked for each."""
        oids, modifiers = [oid for oid, _ in types], [modifier for _, modifier in types]
        with closing(connect(self.endpoint, self.tls)) as connection, connection.cursor() as cursor:
            try:
                cursor.execute(
                    "SELECT t.oid, t.modifier, pg_catalog.format_type(t.oid::oid, t.modifier) "
                    "FROM (SELECT * FROM unnest(%s::bigint[], %s::integer[]) UNION "
                    "SELECT a.atttypid::bigint, a.atttypmod FROM pg_attribute AS a JOIN pg_class AS c "
                    "ON c.oid = a.attrelid WHERE c.relkind IN ('r', 'p') AND c.oid >= 16384 AND a.attnum > 0 "
                    "AND NOT a.attisdropped) AS t(oid, modifier)",
                    (oids, modifiers),
                )
            except psycopg2.Error as exc:
                raise meaning(exc, connection) from exc
            return {(int(oid), int(modifier)): str(name) for oid, modifier, name in cursor.fetchall()}
