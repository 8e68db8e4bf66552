"""Every code of every character set: Tidemark's tables against the servers' own conversion."""

from typing import Any

import pytest

from tests.support.servers import Database, FindServer, fresh_database
from tidemark.readers.mysql.decoding.charsets import MAX_CHARACTER_BYTES, decode_text
from tidemark.readers.mysql.decoding.columns import ColumnPlan
from tidemark.readers.mysql.decoding.usual_codes import has_unusual_code, may_have_unusual_codes
from tidemark.readers.mysql.schema.catalog import load_schema
from tidemark.readers.mysql.snapshot.result import stream_select
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.table import TableId

pytestmark = pytest.mark.integration

INSERT_ROWS = 5000
UNICODE = {"utf8", "utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32"}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def codes(request: pytest.FixtureRequest, find_server: FindServer) -> Any:
    """A database whose table `codes` holds every code of one, two and, where they mean something, more bytes."""
    every = [bytes((a,)) for a in range(256)]
    every += [bytes((a, b)) for a in range(0x80, 0x100) for b in range(256)]
    every += [bytes((0x8F, a, b)) for a in range(0xA1, 0xFF) for b in range(0xA1, 0xFF)]
    digits = range(0x30, 0x3A)
    every += [
        bytes((a, b, c, d)) for a in (0x81, 0x90) for b in digits for c in range(0x81, 0xFF) for d in (0x30, 0x37)
    ]
    with fresh_database(find_server(request.param)) as database:
        database.execute("CREATE TABLE codes (code VARBINARY(4) PRIMARY KEY)")
        for i in range(0, len(every), INSERT_ROWS):
            listed = ",".join(f"(0x{code.hex()})" for code in every[i : i + INSERT_ROWS])
            database.execute(f"INSERT INTO codes VALUES {listed}")
        yield database


@pytest.mark.pitfall(38)
@pytest.mark.parametrize("charset", sorted({*MAX_CHARACTER_BYTES} - UNICODE))
def test_codes_decode_as_the_server_converts_them(codes: Database, charset: str) -> None:
    """A code that the server converts to `?` or U+FFFD has no character: decoding it is an error, never a replacement."""
    if codes.kind == "mariadb" and charset == "gb18030":
        return  # MariaDB does not have it
    rows = codes.query(
        f"SELECT code, CAST(t AS BINARY) = code, CONVERT(t USING utf8mb4) FROM"
        f" (SELECT code, CONVERT(CAST(code AS CHAR CHARACTER SET {charset}) USING {charset}) AS t FROM codes"
        f" WHERE LENGTH(code) <= {MAX_CHARACTER_BYTES[charset]}) x"
    )
    different = []
    for code, valid, shown in rows:
        if not valid:
            continue
        try:
            text = decode_text(charset, code)
        except UnicodeDecodeError:
            text = None
        lost = not shown or "\ufffd" in shown or shown.count("?") > code.count(b"?")
        if text != (None if lost else shown):
            different.append((code.hex(), text, shown))
    assert not different
    assert sum(bool(valid) for _, valid, _ in rows) >= 128


@pytest.mark.parametrize("charset", sorted({*MAX_CHARACTER_BYTES} - UNICODE - {"gb18030"}))
def test_usual_codes_are_those_that_the_server_writes(codes: Database, charset: str) -> None:
    rows = codes.query(
        f"SELECT code, CONVERT(CONVERT(t USING utf8mb4) USING {charset}) = BINARY t FROM"
        f" (SELECT code, CONVERT(CAST(code AS CHAR CHARACTER SET {charset}) USING {charset}) AS t FROM codes"
        f" WHERE LENGTH(code) <= {MAX_CHARACTER_BYTES[charset]}) x"
    )
    doubled = 0
    for code, is_usual in rows:
        try:
            text = decode_text(charset, code)
        except UnicodeDecodeError:
            continue
        if is_usual is None:  # no value of the charset
            continue
        assert has_unusual_code(charset, code, text) == (not is_usual), code.hex()
        doubled += not is_usual
    assert (doubled > 0) == may_have_unusual_codes(charset)


@pytest.mark.pitfall(38)
@pytest.mark.parametrize(
    ("charset", "code"), [("gbk", "A140"), ("cp1250", "81"), ("big5", "A15A"), ("ucs2", "D83DDE00")]
)
def test_what_stands_for_no_character_is_refused(codes: Database, charset: str, code: str) -> None:
    """The server would answer `?`, U+FFFD, or nothing at all."""
    table = f"refused_{charset}"
    codes.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, content VARCHAR(10) CHARACTER SET {charset})",
        f"INSERT INTO {table} VALUES (1, _{charset} 0x{code})",
    )
    connection = codes.connect()
    schema = load_schema(connection, TableId(codes.name, table))
    sql = f"SELECT id, content FROM {codes.name}.{table}"
    with pytest.raises(SourceNotUsableError, match=rf"{table}\.content has bytes that are not valid {charset}"):
        list(stream_select(connection, sql, ColumnPlan.for_result(schema), zero_dates_null=True))
