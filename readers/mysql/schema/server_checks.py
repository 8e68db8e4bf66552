"""Preflight checks of the server: its settings, the account's grants, open XA transactions."""

import re

import pymysql

from tidemark.readers.findings import Finding, of_error, refusal, warning
from tidemark.readers.mysql.binlog.xa import prepared_xids
from tidemark.readers.mysql.connect import Connection, error_code, error_text
from tidemark.readers.mysql.server import (
    ACCESS_DENIED,
    LogStatus,
    ServerInfo,
    read_log_status,
    watermark_method,
)
from tidemark.state.errors import SourceNotUsableError

SHORT_EXPIRY_SECONDS = 86_400
SMALL_PACKET_BYTES = 16 << 20

_GRANT = re.compile(r"GRANT (?P<privileges>.+?) ON \*\.\* TO ", re.IGNORECASE)
_MAKE_PERMANENT = "and make it permanent in the server's option file; open sessions keep the old value"


def check_settings(server: ServerInfo) -> list[Finding]:
    """Checks that the log has every change, with all columns and their names."""
    found: list[Finding] = []
    if not server.log_bin:
        return [
            refusal(
                f"The binary log of {server.name} is off, so changes can't be read.",
                "Start the server with log_bin.",
            )
        ]
    for name, value, wanted, why in (
        ("binlog_format", server.binlog_format, "ROW", "changes are logged as statements, not as rows"),
        ("binlog_row_image", server.binlog_row_image, "FULL", "changed rows lack columns in the log"),
        ("binlog_row_metadata", server.binlog_row_metadata, "FULL", "columns in the log have neither names nor labels"),
    ):
        if value != wanted:
            found.append(
                refusal(
                    f"{name} is {value or 'not set'}: {why}.", f"SET GLOBAL {name} = '{wanted}', {_MAKE_PERMANENT}."
                )
            )
    if "PARTIAL_JSON" in server.binlog_row_value_options:
        found.append(
            refusal(
                "binlog_row_value_options has PARTIAL_JSON: the log has only the changed parts of JSON values.",
                f"SET GLOBAL binlog_row_value_options = '', {_MAKE_PERMANENT}.",
            )
        )
    if server.is_replica and not server.log_replica_updates:
        name = "log_slave_updates" if server.flavour == "mariadb" else "log_replica_updates"
        found.append(
            refusal(
                f"The server is a replica with {name} off: what it replicates is not in its own log.",
                f"Restart it with {name}=ON, or read from its source.",
            )
        )
    if server.lower_case_table_names == 2:
        found.append(
            refusal(
                "lower_case_table_names is 2: the log may spell a table's name differently from the catalog.",
                "Use a server with lower_case_table_names 0 or 1.",
            )
        )
    return [*found, *_worth_knowing(server)]


def check_account(connection: Connection, server: ServerInfo, *, snapshots: bool) -> list[Finding]:
    """Checks the global grants, by trying a statement where one exists."""
    if not server.log_bin:
        return []
    found = []
    if snapshots:
        try:
            watermark_method(connection, server)
        except SourceNotUsableError as error:
            found.append(of_error(error))
    if not _may_read_log(connection, server):
        found.append(
            refusal(
                "The account may not read the binary log.",
                "GRANT REPLICATION SLAVE ON *.* TO <account>.",
            )
        )
    return found


def find_log_status(connection: Connection, server: ServerInfo) -> tuple[LogStatus | None, list[Finding]]:
    """The log status, which tells what the log omits. None if it can't be read, with a finding unless the log is off."""
    if not server.log_bin:
        return None, []
    try:
        return read_log_status(connection, server), []
    except SourceNotUsableError as error:
        return None, [of_error(error)]


def check_prepared_transactions(connection: Connection, server: ServerInfo, *, snapshots: bool) -> list[Finding]:
    """Warns of prepared XA transactions. Refuses a server whose watermarks need their list if the account may not see it."""
    if not server.log_bin:
        return []
    try:
        xids = sorted(prepared_xids(connection))
    except SourceNotUsableError as error:
        # With GTIDs the list is only for this warning. MariaDB shows it to everybody.
        return [of_error(error)] if snapshots and server.gtid_mode != "ON" else []
    if not xids:
        return []
    shown = ", ".join(xids[:3]) + (", …" if len(xids) > 3 else "")
    return [
        warning(
            f"{len(xids)} XA transaction(s) are prepared but not committed: {shown}. Their changes are copied once they "
            "commit. If the server has deleted the log in which they were prepared, the job then stops.",
            "Commit or roll back those that are forgotten (XA RECOVER lists them).",
        )
    ]


def _worth_knowing(server: ServerInfo) -> list[Finding]:
    found = []
    if server.gtid_mode.endswith("PERMISSIVE"):
        found.append(
            warning(
                f"gtid_mode is {server.gtid_mode}, which is meant only for the time of a migration.",
                "Finish the migration: SET GLOBAL gtid_mode = ON (or OFF).",
            )
        )
    if 0 < server.binlog_expire_seconds < SHORT_EXPIRY_SECONDS:
        found.append(
            warning(
                f"The server deletes its log after {server.binlog_expire_seconds} seconds: a job that pauses for longer "
                "can't continue.",
                "Raise binlog_expire_logs_seconds, to some days if there is room.",
            )
        )
    if server.max_allowed_packet_bytes < SMALL_PACKET_BYTES:
        found.append(
            warning(
                f"max_allowed_packet is {server.max_allowed_packet_bytes} bytes: a longer row can't be read.",
                f"SET GLOBAL max_allowed_packet = {SMALL_PACKET_BYTES} or more.",
            )
        )
    if server.galera:
        found.append(
            warning(
                "The server is a node of a Galera cluster: the job's lease is this node's only.",
                "Let all runs of the job connect to the same node while it lives.",
            )
        )
    if server.galera and server.own_numbers:
        found.append(
            warning(
                f"{server.own_numbers}. So the job can't continue at another node without reading all rows again.",
                "Set wsrep_gtid_mode=ON on all nodes, with the same wsrep_gtid_domain_id, which no node has or had as "
                "gtid_domain_id, and a server_id of its own for each.",
            )
        )
    return found


def _may_read_log(connection: Connection, server: ServerInfo) -> bool:
    """True if the account has REPLICATION SLAVE. In MySQL a statement also needs it. In MariaDB only the dump does, so we read
    the grants there."""
    with connection.cursor() as cursor:
        if server.flavour == "mariadb":
            cursor.execute("SHOW GRANTS")
            return any(grants_log(str(row[0])) for row in cursor.fetchall())
        try:
            cursor.execute("SHOW BINLOG EVENTS LIMIT 1")
        except pymysql.MySQLError as error:
            if error_code(error) not in ACCESS_DENIED:
                raise SourceNotUsableError(
                    f"The binary log can't be listed: {error_text(error)}.",
                    "Check the server's log files.",
                ) from error
            return False
        return True


def grants_log(grant: str) -> bool:
    match = _GRANT.match(grant)
    privileges = [] if match is None else [name.strip().upper() for name in match["privileges"].split(",")]
    return any(name in {"REPLICATION SLAVE", "REPLICATION REPLICA", "ALL PRIVILEGES", "ALL"} for name in privileges)
