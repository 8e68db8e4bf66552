"""The log of a server, read through a slot."""

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

import psycopg2

from tidemark.conf.endpoint import Endpoint
from tidemark.conf.reconnect import AT_START, Reconnect
from tidemark.conf.source import Tls
from tidemark.readers.postgres.connect import connect
from tidemark.readers.postgres.pgoutput.stream import LogStream, meaning, peek_query
from tidemark.readers.postgres.replay import await_replay
from tidemark.readers.postgres.slot.slot import SlotSource, check_position, check_slot
from tidemark.state.position import WalPosition


@dataclass(frozen=True, slots=True)
class ServerLog:
    """Implements `log_source.LogSource`. `standby`: the server may be one (source.standby)."""

    endpoint: Endpoint
    tls: Tls | None
    slot_source: SlotSource
    reconnect: Reconnect = AT_START
    standby: bool = False

    def open(self, start: WalPosition, stop: WalPosition) -> LogStream:
        connection = connect(self.endpoint, self.tls, reconnect=self.reconnect, primary=not self.standby)
        try:
            check_slot(connection, self.slot_source, start, until=stop)
        except psycopg2.Error as exc:
            connection.close()
            raise meaning(exc, connection) from exc
        except BaseException:
            connection.close()
            raise
        query = peek_query(self.slot_source.slot, self.slot_source.publication, stop)
        # Checked again after reading: the server silently leaves out what is before the slot's position.
        return LogStream(connection, query, lambda: check_position(connection, self.slot_source.slot, start))

    def type_names(self, types: Collection[tuple[int, int]], stop: WalPosition) -> Mapping[tuple[int, int], str]:
        """Returns the names of `types`, and of the types that all tables' columns have, so that one query is enough. A standby
        that was restarted is waited for: it may lack types that the log has."""
        oids, modifiers = [oid for oid, _ in types], [modifier for _, modifier in types]
        with (
            closing(connect(self.endpoint, self.tls, reconnect=self.reconnect, primary=not self.standby)) as connection,
            connection.cursor() as cursor,
        ):
            try:
                await_replay(connection, stop)
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
