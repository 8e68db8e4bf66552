"""TCP keep-alive of connections to MySQL and MariaDB; PostgreSQL's is libpq's own (conf/libpq.py)."""

import socket

IDLE_SECONDS = 30
INTERVAL_SECONDS = 10
COUNT = 6


def keep_alive(connection: socket.socket) -> None:
    """Lets the system notice a dead server while we wait for a response, and firewalls not forget a connection that is not
    used for long."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", IDLE_SECONDS), ("TCP_KEEPINTVL", INTERVAL_SECONDS), ("TCP_KEEPCNT", COUNT)):
        number = getattr(socket, option, None)  # not every system has all three
        if number is not None:
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
