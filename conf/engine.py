"""DuckDB, which evaluates masks and transforms: in memory, on one thread, without files, network and extensions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "512MB"

_SETTINGS = (
    "threads = 1",  # also keeps rows in their order
    f"memory_limit = '{MEMORY_LIMIT}'",
    "temp_directory = ''",  # values must not reach a disk
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",  # a table's name is never a Python variable's
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


def open_engine() -> "DuckDBPyConnection":
    """Only jobs that mask or transform need DuckDB, and call this. Close it."""
    import duckdb

    connection = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        connection.execute(f"SET {setting}")
    return connection
