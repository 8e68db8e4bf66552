"""Key values of every type that a split key can have: as SQL, in the server's order, and as the log reader gives
them."""

from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

UTC = timezone.utc
BIG = pa.decimal128(20, 0)


@dataclass(frozen=True, slots=True)
class KeyValues:
    """A type's values, ascending: SQL literal → value of `arrow_type`."""

    sql_type: str
    arrow_type: pa.DataType
    values: dict[str, Any]

    @property
    def array(self) -> pa.Array:
        return pa.array(list(self.values.values()), self.arrow_type)


def integers(sql_type: str, arrow_type: pa.DataType, *values: int) -> KeyValues:
    as_decimal = pa.types.is_decimal(arrow_type)
    return KeyValues(sql_type, arrow_type, {str(n): Decimal(n) if as_decimal else n for n in values})


def decimals(sql_type: str, arrow_type: pa.DataType, *texts: str) -> KeyValues:
    return KeyValues(sql_type, arrow_type, {text: Decimal(text) for text in texts})


def floats(sql_type: str, arrow_type: pa.DataType, *values: float) -> KeyValues:
    return KeyValues(sql_type, arrow_type, {f"{value!r} + 0e0": value for value in values})


NINES = "9" * 35
MAX_FLOAT = 3.4028234663852886e38
A_TENTH = 0.10000000149011612  # the FLOAT that is next to 0.1
KEY_VALUES = [
    integers("tinyint", pa.int8(), -128, -1, 0, 1, 127),
    integers("smallint", pa.int16(), -(2**15), -1, 0, 1, 2**15 - 1),
    integers("mediumint", pa.int32(), -(2**23), -1, 0, 1, 2**23 - 1),
    integers("int", pa.int32(), -(2**31), -1, 0, 1, 2**31 - 1),
    integers("bigint", pa.int64(), -(2**63), -1, 0, 1, 2**63 - 1),
    integers("tinyint unsigned", pa.int16(), 0, 1, 128, 255),
    integers("smallint unsigned", pa.int32(), 0, 1, 2**15, 2**16 - 1),
    integers("mediumint unsigned", pa.int32(), 0, 1, 2**23, 2**24 - 1),
    integers("int unsigned zerofill", pa.int64(), 0, 1, 2**31, 2**32 - 1),
    integers("bigint unsigned", BIG, 0, 2**63 - 1, 2**63, 2**64 - 1),
    integers("bit(5)", pa.int64(), 0, 1, 31),
    integers("bit(64)", BIG, 0, 1, 2**63, 2**64 - 1),
    integers("year", pa.int16(), 0, 1901, 1999, 2000, 2024, 2155),
    decimals(
        "decimal(20,4)", pa.decimal128(20, 4), "-9999999999999999.9999", "-1.5", "0", "0.0001", "1234567890123456.7891"
    ),
    decimals("decimal(38,0)", pa.decimal128(38, 0), "-" + "9" * 38, "-1", "0", "9" * 38),
    KeyValues(
        "decimal(65,30)",
        pa.string(),
        {
            f"-{NINES}.5": f"-{NINES}.5{'0' * 29}",
            "-0.000000000000000000000000000001": f"-0.{'0' * 29}1",
            "0": f"0.{'0' * 30}",
            "1.1": f"1.1{'0' * 29}",
            NINES: f"{NINES}.{'0' * 30}",
        },
    ),
    KeyValues(
        "date",
        pa.date32(),
        {
            f"'{d}'": d
            for d in map(date.fromisoformat, ("1000-01-01", "1969-12-31", "1970-01-01", "2024-02-29", "9999-12-31"))
        },
    ),
    KeyValues(
        "datetime(6)",
        pa.timestamp("us"),
        {
            "'1000-01-01 00:00:00'": datetime(1000, 1, 1),
            "'1969-12-31 23:59:59.999999'": datetime(1969, 12, 31, 23, 59, 59, 999999),
            "'1970-01-01 00:00:00'": datetime(1970, 1, 1),
            "'2024-02-29 12:00:00.5'": datetime(2024, 2, 29, 12, 0, 0, 500000),
            "'9999-12-31 23:59:59.999999'": datetime(9999, 12, 31, 23, 59, 59, 999999),
        },
    ),
    KeyValues(
        "datetime",
        pa.timestamp("us"),
        {"'2000-01-01 00:00:00'": datetime(2000, 1, 1), "'2000-01-01 00:00:01'": datetime(2000, 1, 1, 0, 0, 1)},
    ),
    KeyValues(
        "timestamp(3)",
        pa.timestamp("us", tz="UTC"),
        {
            "'1970-01-01 00:00:01'": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
            "'2024-03-31 01:30:00.125'": datetime(2024, 3, 31, 1, 30, 0, 125000, UTC),
            "'2038-01-19 03:14:07.999'": datetime(2038, 1, 19, 3, 14, 7, 999000, UTC),
        },
    ),
    KeyValues(
        "time(2)",
        pa.string(),
        {
            "'-838:59:59'": "-838:59:59.00",
            "'-00:00:00.5'": "-00:00:00.50",
            "'00:00:00'": "00:00:00.00",
            "'00:00:00.01'": "00:00:00.01",
            "'100:00:00'": "100:00:00.00",
            "'838:59:59'": "838:59:59.00",
        },
    ),
    KeyValues(
        "binary(3)",
        pa.binary(),
        {"''": b"\0\0\0", "x'01'": b"\1\0\0", "'a'": b"a\0\0", "'a\\0b'": b"a\0b", "x'ff'": b"\xff\0\0"},
    ),
    KeyValues(
        "varbinary(10)",
        pa.binary(),
        {f"x'{b.hex()}'": b for b in (b"", b"\0", b"\0\0", b"\1", b"a", b"a\0", b"a\1", b"\xff")},
    ),
    KeyValues(
        "char(5) collate utf8mb4_bin",
        pa.string(),
        {"''": "", "'A'": "A", "'a\\t'": "a\t", "'a  '": "a", "'b'": "b", "'😀'": "😀"},
    ),
    floats("float", pa.float32(), -MAX_FLOAT, -1.5, -1.401298464324817e-45, 0.0, A_TENTH, 16777216, MAX_FLOAT),
    floats("float unsigned", pa.float32(), 0.0, 1.401298464324817e-45, A_TENTH, 0.10000000894069672),
    floats(
        "double",
        pa.float64(),
        -1.7976931348623157e308,
        -0.1,
        -5e-324,
        0.0,
        0.1,
        A_TENTH,
        2.0**53,
        1.7976931348623157e308,
    ),
    KeyValues("enum('b','a','2','1','0')", pa.string(), {f"'{label}'": label for label in ("b", "a", "2", "1", "0")}),
    KeyValues("enum('ö','ß','x''y\\\\z')", pa.string(), {"'ö'": "ö", "'ß'": "ß", "'x''y\\\\z'": "x'y\\z"}),
    KeyValues(
        "set('2','1','0')",
        pa.string(),
        {f"'{text}'": text for text in ("", "2", "1", "2,1", "0", "2,0", "1,0", "2,1,0")},
    ),
]
MARIADB_KEY_VALUES = [
    KeyValues(
        "uuid",
        pa.string(),
        {
            f"'{text}'": text
            for text in (
                *("00000000-0000-0000-0000-000000000000", "00000000-0000-7000-8000-000000000001"),
                *("00000000-0001-0000-0000-000000000000", "ffffffff-ffff-1fff-8000-000000000001"),
                *("00000000-0000-4000-8000-000000000002", "ffffffff-ffff-7000-8000-000000000001"),
                *("00000000-0000-5000-ffff-ffffffffffff", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
            )
        },
    ),
    KeyValues("inet4", pa.string(), {f"'{a}'": a for a in ("0.0.0.0", "9.0.0.1", "10.0.0.1", "255.255.255.255")}),
    KeyValues(
        "inet6", pa.string(), {f"'{a}'": a for a in ("::", "::1", "::ffff:1.2.3.4", "2001:db8::ff00:42:8329", "ffff::")}
    ),
]
