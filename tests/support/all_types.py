"""One table with a column of every type that can be carried, and rows of their edge values.

    create_all_types(connection)  # CREATE TABLE all_types in the connection's database
    insert_edge_rows(connection)  # each edge value at least once, and a row of nulls

The columns depend on the server's flavour and version, which are asked of the connection.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MANY_LABELS = tuple(f"label {i}" for i in range(300))


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A column: its name, its declaration without NULL, and SQL literals of its edge values."""

    name: str
    declaration: str
    values: tuple[str, ...]


def type_cases(*, mariadb: bool, version: tuple[int, int, int]) -> list[TypeCase]:
    cases = [*_numbers(mariadb), *_timestamps(), *_texts(mariadb), *_bytes(), *_labels(), *_documents(mariadb)]
    if mariadb:
        cases += _addresses(version)
    elif version >= (9, 0, 0):
        values = ("STRING_TO_VECTOR('[1, -2.5, 3.4e38]')", "STRING_TO_VECTOR('[0.1]')")
        cases.append(TypeCase("vector_3", "VECTOR(3)", values))
    return cases


def create_all_types(connection: Any, table: str = "all_types") -> None:
    """The table has `id INT PRIMARY KEY`, the type cases, and a stored and a virtual generated column."""
    columns = [f"{case.name} {case.declaration} NULL" for case in _cases_of(connection)]
    columns.append("generated_stored BIGINT AS (int_signed + 1) STORED")
    columns.append("generated_virtual VARCHAR(60) CHARACTER SET utf8mb4 AS (CONCAT('<', varchar_20, '>')) VIRTUAL")
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, {', '.join(columns)}) ENGINE=InnoDB")


def insert_edge_rows(connection: Any, table: str = "all_types", *, first_id: int = 0, nul: bool = True) -> int:
    """Row `first_id` + i holds every column's i-th value, counted modulo their number; the last row is all null.

    Changes the session's SQL mode (zero dates) and time zone. Without `nul` no text holds the character NUL, which
    PostgreSQL has no place for. Returns the number of rows.
    """
    cases = _cases_of(connection)
    count = max(len(case.values) for case in cases)
    names = ", ".join(case.name for case in cases)
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = '', time_zone = '+00:00'")
        for i in range(count):
            values = ", ".join(case.values[i % len(case.values)] for case in cases)
            values = values if nul else values.replace(r"\0", "")
            cursor.execute(f"INSERT INTO {table} (id, {names}) VALUES ({first_id + i}, {values})")
        cursor.execute(f"INSERT INTO {table} (id) VALUES ({first_id + count})")
    connection.commit()
    return count + 1


def _cases_of(connection: Any) -> list[TypeCase]:
    text = connection.get_server_info()
    match = re.search(r"(?:5\.5\.5-)?(\d+)\.(\d+)\.(\d+)", text)
    assert match is not None
    major, minor, patch = (int(part) for part in match.groups())
    return type_cases(mariadb="MariaDB" in text, version=(major, minor, patch))


def _numbers(mariadb: bool) -> Iterator[TypeCase]:
    for name, bits in (("tinyint", 8), ("smallint", 16), ("mediumint", 24), ("int", 32), ("bigint", 64)):
        half = 1 << (bits - 1)
        signed = (str(-half), str(half - 1), "0", "-1", "1")
        yield TypeCase(f"{name}_signed", name, signed)
        yield TypeCase(f"{name}_unsigned", f"{name} UNSIGNED", ("0", str(2 * half - 1), str(half), "1"))
    yield TypeCase("tinyint_1", "TINYINT(1)", ("0", "1", "-128", "127"))
    yield TypeCase("int_zerofill", "INT(10) UNSIGNED ZEROFILL", ("7", "4294967295"))
    sizes = [(1, 0), (5, 5), (9, 2), (10, 0), (12, 2), (18, 9), (19, 4), (20, 0), (27, 9), (38, 0), (38, 10), (38, 30)]
    sizes += [(39, 0), (39, 30), (65, 0), (65, 30), (36, 18), (30, 30)]
    if mariadb:
        sizes += [(38, 38), (65, 38)]
    for precision, scale in sizes:
        nines = "9" * (precision - scale) + (f".{'9' * scale}" if scale else "")
        least = f"0.{'0' * (scale - 1)}1" if scale else "1"
        mixed = "1" * ((precision - scale + 1) // 2) + (f".{'50' * (scale // 2)}" if scale > 1 else "")
        yield TypeCase(
            f"decimal_{precision}_{scale}",
            f"DECIMAL({precision},{scale})",
            (nines, f"-{nines}", "0", least, f"-{least}", mixed or "0", f"-{mixed or '0'}"),
        )
    yield TypeCase("decimal_zerofill", "DECIMAL(10,2) UNSIGNED ZEROFILL", ("0", "1.5", "99999999.99"))
    yield TypeCase("float_any", "FLOAT", ("0", "-0e0", "1.5", "-3.402823466e38", "1.175494351e-38", "0.1", "1e-45"))
    yield TypeCase("float_7_3", "FLOAT(7,3)", ("1234.567", "-0.001"))
    yield TypeCase(
        "double_any",
        "DOUBLE",
        ("0", "-0e0", "0.1", "1.7976931348623157e308", "-2.2250738585072014e-308", "1e23", "5e-324"),
    )
    yield TypeCase("double_10_2", "DOUBLE(10,2)", ("12345678.91", "-0.01"))
    for bits in (1, 7, 8, 9, 16, 33, 63, 64):
        yield TypeCase(f"bit_{bits}", f"BIT({bits})", ("0", str((1 << bits) - 1), "1", str(1 << (bits - 1))))


def _timestamps() -> Iterator[TypeCase]:
    yield TypeCase(
        "date_any",
        "DATE",
        (
            "'1000-01-01'",
            "'9999-12-31'",
            "'1970-01-01'",
            "'1969-12-31'",
            "'2000-02-29'",
            "'0001-01-01'",
            "'1900-03-01'",
            "'0000-00-00'",
            "'2024-00-00'",
            "'2024-05-00'",
        ),
    )
    for digits in range(7):
        nines = f".{'9' * digits}" if digits else ""
        least = f".{'0' * (digits - 1)}1" if digits else ""
        yield TypeCase(
            f"datetime_{digits}",
            f"DATETIME({digits})",
            (
                f"'1000-01-01 00:00:00{least}'",
                f"'9999-12-31 23:59:59{nines}'",
                f"'2024-02-29 12:34:56{least}'",
                f"'1969-12-31 23:59:59{nines}'",
                "'1970-01-01 00:00:00'",
                "'0000-00-00 00:00:00'",
                "'2023-00-15 10:11:12'",
            ),
        )
        yield TypeCase(
            f"timestamp_{digits}",
            f"TIMESTAMP({digits})",
            (
                f"'1970-01-01 00:00:01{least}'",
                f"'2038-01-19 03:14:07{nines}'",
                f"'2024-02-29 12:34:56{least}'",
                "'0000-00-00 00:00:00'",
                f"'1970-01-01 00:00:00{least}'",  # MySQL takes it for zero, MariaDB does not
            ),
        )
        yield TypeCase(
            f"time_{digits}",
            f"TIME({digits})",
            (
                "'-838:59:59'",
                "'838:59:59'",
                "'00:00:00'",
                f"'-00:00:00{least}'",
                f"'00:00:00{least}'",
                f"'-12:34:56{nines}'",
                f"'23:59:59{nines}'",
                f"'-00:00:01{least}'",
                "'100:00:00'",
            ),
        )
    yield TypeCase("year_any", "YEAR", ("0", "1901", "2155", "2024"))


def _texts(mariadb: bool) -> Iterator[TypeCase]:
    common = ("''", "'a'", "' b  c '", "'tab\\t\\n\\0'")
    emoji = "_utf8mb4 0xF09F98806AC3A9E282AC"
    yield TypeCase(
        "varchar_20", "VARCHAR(20) CHARACTER SET utf8mb4", (*common, emoji, "REPEAT(_utf8mb4 0xF09F9880, 20)")
    )
    yield TypeCase("varchar_bin", "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", (*common, emoji))
    yield TypeCase("varchar_255", "VARCHAR(63) CHARACTER SET utf8mb4", ("''", "REPEAT(_utf8mb4 0xF09F9880, 63)"))
    yield TypeCase("varchar_256", "VARCHAR(64) CHARACTER SET utf8mb4", ("''", "REPEAT(_utf8mb4 0xF09F9880, 64)", "'x'"))
    yield TypeCase("char_10", "CHAR(10) CHARACTER SET utf8mb4", ("''", "'a  '", "'  a'", emoji, "'0123456789'"))
    yield TypeCase("char_255", "CHAR(255) CHARACTER SET utf8mb4", ("''", "REPEAT(_utf8mb4 0xF09F9880, 255)", "'y'"))
    yield TypeCase("char_0", "CHAR(0) CHARACTER SET utf8mb4", ("''",))
    yield TypeCase("char_latin1", "CHAR(5) CHARACTER SET latin1", ("_latin1 0xE9", "_latin1 0x8180A0FF", "''"))
    charsets = {
        "ascii": ("61", "7e7f"),
        "utf8mb3": ("c3a9e282ac", "efbfbf"),
        "latin1": ("e9", "80818d8f909dff", "a0"),
        "latin2": ("a1b1ff",),
        "koi8r": ("c1c2ff80",),
        "cp1251": ("88c0ff",),
        "swe7": ("5b5c40",),
        "greek": ("e1f2",),
        "ucs2": ("00e920ac", "fffd", "4e00"),
        "utf16": ("00e9d83dde00",),
        "utf16le": ("e9003dd800de",),
        "utf32": ("000000e90001f600",),
        "gbk": ("c4e3bac3", "8140fe4f", "41b0a142"),
        "gb2312": ("c4e3bac3",),
        "big5": ("a7da", "f9d6"),
        "sjis": ("82a0", "5c815fb1"),
        "cp932": ("82a0", "fa40815f", "5c"),
        "euckr": ("b0a1", "8141"),
        "ujis": ("a4a2", "8eb1", "8fb0a1", "a1c0"),
        "eucjpms": ("a4a2ada1", "8fa2b7", "8ff3f3", "a1c1"),
    }
    if not mariadb:
        charsets["gb18030"] = ("c4e3", "8135f437", "9439fc36", "a8bc")
    for charset, codes in charsets.items():
        values = tuple(f"_{charset} 0x{code}" for code in codes)
        yield TypeCase(f"varchar_{charset}", f"VARCHAR(20) CHARACTER SET {charset}", ("''", *values))
    yield TypeCase("tinytext_any", "TINYTEXT CHARACTER SET utf8mb4", (*common, "REPEAT('x', 255)"))
    yield TypeCase("text_any", "TEXT CHARACTER SET utf8mb4", (*common, "REPEAT('x', 65535)", emoji))
    yield TypeCase("text_latin1", "TEXT CHARACTER SET latin1", ("REPEAT(_latin1 0xE981, 300)", "''"))
    yield TypeCase("mediumtext_any", "MEDIUMTEXT CHARACTER SET utf8mb4", (*common, "REPEAT(_utf8mb4 0xC3A9, 70000)"))
    yield TypeCase("longtext_any", "LONGTEXT CHARACTER SET utf8mb4", (*common, "REPEAT('xyz', 100000)"))


def _bytes() -> Iterator[TypeCase]:
    every = "0x" + bytes(range(256)).hex()
    yield TypeCase("binary_1", "BINARY(1)", ("0x00", "0x20", "0xFF", "''"))
    yield TypeCase("binary_16", "BINARY(16)", ("''", "0x00", "0x0001", "0x2000", "REPEAT(0xFF, 16)", "0x6120"))
    yield TypeCase("binary_255", "BINARY(255)", ("''", "REPEAT(0x01, 255)"))
    yield TypeCase("varbinary_20", "VARBINARY(20)", ("''", "0x00", "0x610000", "REPEAT(0xFF, 20)"))
    yield TypeCase("varbinary_300", "VARBINARY(300)", ("''", every, "REPEAT(0x00, 300)"))
    yield TypeCase("tinyblob_any", "TINYBLOB", ("''", "0x00", "REPEAT(0xFF, 255)"))
    yield TypeCase("blob_any", "BLOB", ("''", every, "REPEAT(0xAB, 65535)"))
    yield TypeCase("mediumblob_any", "MEDIUMBLOB", ("''", every, "REPEAT(0xCD, 70000)"))
    yield TypeCase("longblob_any", "LONGBLOB", ("''", every, "REPEAT(0xEF, 300000)"))


def _labels() -> Iterator[TypeCase]:
    listed = ", ".join(f"'{label}'" for label in MANY_LABELS)
    yield TypeCase("enum_plain", "ENUM('a','b') CHARACTER SET utf8mb4", ("'a'", "'b'", "0"))
    odd = "'','it''s','b,c','é','\U0001f600','back\\\\slash','日本'"
    yield TypeCase("enum_odd", f"ENUM({odd}) CHARACTER SET utf8mb4", ("1", "2", "3", "4", "5", "6", "7", "0"))
    yield TypeCase("enum_latin1", "ENUM('é','ü') CHARACTER SET latin1", ("1", "2"))
    yield TypeCase("enum_gbk", "ENUM('你','好') CHARACTER SET gbk", ("1", "2"))
    yield TypeCase("enum_many", f"ENUM({listed}) CHARACTER SET utf8mb4", ("1", "255", "256", "300"))
    yield TypeCase("set_plain", "SET('a','b') CHARACTER SET utf8mb4", ("''", "'a'", "'a,b'", "'b'"))
    yield TypeCase("set_odd", "SET('é','\U0001f600','it''s') CHARACTER SET utf8mb4", ("7", "2", "5"))
    for count in (8, 9, 20, 30, 33, 64):
        labels = ",".join(f"'l{i}'" for i in range(count))
        values = ("0", "1", str((1 << count) - 1), str(1 << (count - 1)))
        yield TypeCase(f"set_{count}", f"SET({labels}) CHARACTER SET latin1", values)


def _documents(mariadb: bool) -> Iterator[TypeCase]:
    documents: tuple[str, ...] = (
        """'{"b": 1, "a": [1, 2.5, "x", null, true, false], "aa": {}}'""",
        "'[]'",
        "'null'",
        r"""'"quote \\" back \\\\ tab \\t \\u0001 é"'""",
        "'[0, -1, 65535, 65536, 4294967296, 18446744073709551615, -9223372036854775808]'",
        "'[1.0, 1e20, 1e-7, 0.1, 1.7976931348623157e308, 100000.0]'",
        "CONCAT('[\"', REPEAT('y', 70000), '\", 1]')",
    )
    if not mariadb:
        documents += (
            "JSON_ARRAY(1.50, CAST(-0.5 AS DECIMAL(65,30)))",
            "JSON_ARRAY(CAST('2024-02-29' AS DATE), CAST('2024-02-29 01:02:03.5' AS DATETIME(6)), CAST('-10:11:12' AS TIME))",
            "JSON_ARRAY(0xCAFE, REPEAT(0x00, 200), b'101')",
            "'[1e15, 1e16, 1e17, 123456789012345680.0, 0.0001, 1e-5, -0.0, 5e-324, 1e308, 0.30000000000000004]'",
            "JSON_ARRAY(TIMESTAMP'2024-01-01 00:00:00', CAST('838:59:59' AS TIME), TIME'-00:00:00.5', CAST(2024 AS YEAR))",
            "JSON_OBJECT('', 1, 'é', JSON_OBJECT('a', JSON_ARRAY(JSON_ARRAY())), 'b', REPEAT('z', 70000), 'enum', 0.1e0)",
        )
    yield TypeCase("json_any", "JSON", documents)
    yield TypeCase(
        "geometry_any", "GEOMETRY", ("ST_GeomFromText('POINT(1 2)')", "ST_GeomFromText('LINESTRING(0 0, 1 1)', 0)")
    )
    yield TypeCase("point_any", "POINT", ("ST_GeomFromText('POINT(-1.5 2e10)')",))
    yield TypeCase("polygon_any", "POLYGON", ("ST_GeomFromText('POLYGON((0 0, 0 1, 1 1, 0 0))')",))
    yield TypeCase("collection_any", "GEOMETRYCOLLECTION", ("ST_GeomFromText('GEOMETRYCOLLECTION(POINT(1 1))')",))


def _addresses(version: tuple[int, int, int]) -> Iterator[TypeCase]:
    if version >= (10, 7, 0):
        yield TypeCase(
            "uuid_any",
            "UUID",
            (
                "'00000000-0000-0000-0000-000000000000'",
                "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
                "'6ccd780c-baba-1026-9564-5b8c656024db'",
                "'123e4567-e89b-42d3-a456-426614174000'",
                "'01234567-89ab-7def-8123-456789abcd20'",
            ),
        )
    yield TypeCase(
        "inet6_any",
        "INET6",
        (
            "'::'",
            "'::1'",
            "'2001:db8::ff00:42:8329'",
            "'::ffff:1.2.3.4'",
            "'::1.2.3.4'",
            "'1:0:2:3:4:5:6:0'",
            "'1:2::3:0:0'",
        ),
    )
    if version >= (10, 10, 0):
        yield TypeCase("inet4_any", "INET4", ("'0.0.0.0'", "'255.255.255.255'", "'10.32.0.32'", "'1.2.3.0'"))
