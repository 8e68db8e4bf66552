"""Opens DuckDB for masks and transforms: in memory, on one thread, without files, network and extensions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_LIMIT = "512MB"

_SETTINGS = (
    "threads = 1",  # also keeps the order of rows
    f"memory_limit = '{MEMORY_LIMIT}'",
    "temp_directory = ''",  # values must not be written to a disk
    "TimeZone = 'UTC'",
    "python_enable_replacements = false",  # a table's name must not refer to a Python variable
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "allow_community_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)


def open_engine() -> "DuckDBPyConnection":
    """Opens an engine; the caller closes it. Only jobs with masks or transforms call this and need DuckDB installed."""
    import duckdb

    connection = duckdb.connect(":memory:")
    for setting in _SETTINGS:
        connection.execute(f"SET {setting}")
    return connection
