"""Keeps copies of MySQL, MariaDB and PostgreSQL tables complete and current, with Apache Spark.

The subpackages are links to the folders at the repository's root (docs/adr/0018-one-import-package.md).
"""

__version__ = "0.1.0"
