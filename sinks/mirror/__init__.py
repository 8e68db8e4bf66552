"""The mirror sink: keeps tables of a MySQL, MariaDB or PostgreSQL database identical to the source's."""
