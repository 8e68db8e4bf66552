"""The job file's `source` section."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.redaction import Secret
from tidemark.conf.section import ColumnNames, Flag, SecondsOrZero, Section, Text, Written, refuse
from tidemark.conf.tables import GLOB_FORM, NAME_FORM, TableGlob, TableName, parse_table_glob, parse_table_name

MAX_SERVER_ID = 2**32 - 1
MAX_POSTGRES_NAME_BYTES = 63
SLOT_FORM = "a name of a-z, 0-9 and '_', at most 63 characters"
PUBLICATION_FORM = "a name of at most 63 bytes"
MASK_KEY_FORM = "text of 16 characters or more"
MIN_MASK_KEY_LENGTH = 16
SERVER_IDS_FORM = "a range of server ids like 5400-5499"

_RANGE = re.compile(r"([0-9]{1,10}) ?- ?([0-9]{1,10})")


@dataclass(frozen=True, slots=True)
class ServerIdRange:
    """The server ids ``first`` to ``last``, both included, that log connections may use."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


def _read_text(value: Any, kind: type, parse: Any, form: str) -> Any:
    """Reads a value that is written as one text. Instances of ``kind`` pass, text is parsed, anything else is refused."""
    if isinstance(value, kind):
        return value
    if not isinstance(value, str):
        raise refuse(f"must be {form}")
    return parse(value)


def _parse_server_ids(text: str) -> ServerIdRange:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"must be {SERVER_IDS_FORM}")
    first, last = int(match[1]), int(match[2])
    if not 1 <= first <= last <= MAX_SERVER_ID:
        raise ValueError(f"must be {SERVER_IDS_FORM}: the lower id first, both from 1 to {MAX_SERVER_ID}")
    return ServerIdRange(first, last)


def _read_source_url(value: Any) -> Endpoint:
    endpoint: Endpoint = _read_text(value, Endpoint, parse_endpoint, "a database URL")
    if endpoint.kind == "postgresql" and endpoint.database is None:
        raise refuse("names no database: write postgresql://user:password@host:5432/database")
    return endpoint


def _slot_name(name: str) -> str:
    if re.fullmatch(r"[a-z0-9_]{1,63}", name) is None:
        raise refuse(f"must be {SLOT_FORM}")
    return name


def _publication_name(name: str) -> str:
    if not 0 < len(name.encode()) <= MAX_POSTGRES_NAME_BYTES or "\0" in name:
        raise refuse(f"must be {PUBLICATION_FORM}")
    return name


def _without_repeats(names: tuple[str, ...]) -> tuple[str, ...]:
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise refuse(f"names '{repeated}' twice")
    return names


_AsText = PlainSerializer(str, return_type=str)
_TextSchema = WithJsonSchema({"type": "string"})

SourceUrl = Annotated[
    Endpoint,
    PlainValidator(_read_source_url),
    _AsText,
    _TextSchema,
    Written("a URL like mysql://user:password@host:3306/, mariadb://… or postgresql://…/database"),
]
NameOfTable = Annotated[
    TableName,
    PlainValidator(lambda value: _read_text(value, TableName, parse_table_name, NAME_FORM)),
    _AsText,
    _TextSchema,
    Written(NAME_FORM),
]
GlobOfTables = Annotated[
    TableGlob,
    PlainValidator(lambda value: _read_text(value, TableGlob, parse_table_glob, GLOB_FORM)),
    _AsText,
    _TextSchema,
    Written(GLOB_FORM),
]
ServerIds = Annotated[
    ServerIdRange,
    PlainValidator(lambda value: _read_text(value, ServerIdRange, _parse_server_ids, SERVER_IDS_FORM)),
    _AsText,
    _TextSchema,
    Written(SERVER_IDS_FORM),
]
LocalPath = Annotated[Text, Written("the path of a file, relative to the job file's folder")]


class Tls(Section):
    """How connections are encrypted. An empty section, `tls: {}`, is enough if the server's certificate is signed by an
    authority that the system knows."""

    ca: LocalPath | None = Field(
        None,
        description="Certificates of the authorities that may have signed the server's certificate (PEM). Default: those "
        "that the system knows.",
        examples=["./ca.pem"],
    )
    cert: LocalPath | None = Field(None, description="Certificate for the login (PEM); only together with `key`.")
    key: LocalPath | None = Field(None, description="Private key of `cert` (PEM, without a passphrase).")
    verify: Flag = Field(
        True, description="Whether the server's certificate must be trusted and issued for the host of the URL."
    )


def _null_is_a_word(value: Any) -> Any:
    """Reads YAML's `null` as the word null."""
    return "null" if value is None else value


Mask = Literal["sha256", "redact", "null"]


class TableColumns(Section):
    """Columns of a table that are not copied, that are masked before anything is written, or that stay text."""

    exclude: Annotated[
        tuple[Text, ...], AfterValidator(_without_repeats), Written("a list of column names, like [ssn]")
    ] = Field((), description="Columns that are neither read nor written.", examples=[["ssn"]])
    mask: Annotated[
        Mapping[Text, Annotated[Mask, BeforeValidator(_null_is_a_word)]],
        Written("a mapping from columns to sha256 | redact | null"),
    ] = Field(
        {},
        description="Columns whose values are replaced; NULL stays NULL. `sha256`: the SHA-256 of the value's text (or of "
        "its bytes) as 64 hexadecimal digits, keyed if `source.mask_key` is given. `redact`: the text `***`. `null`: NULL. "
        "A column of the key can't be masked.",
        examples=[{"email": "sha256", "phone": "redact"}],
    )
    as_text: Annotated[
        tuple[Text, ...], AfterValidator(_without_repeats), Written("a list of column names, like [matrix]")
    ] = Field(
        (),
        description="PostgreSQL: array columns that are copied as the server's text, not as lists, into files and Delta. For "
        "arrays of several dimensions. It applies when the table's rows are read.",
        examples=[["matrix"]],
    )


def _mask_key(value: Any) -> Secret:
    if isinstance(value, Secret):
        return value
    if not isinstance(value, str) or len(value) < MIN_MASK_KEY_LENGTH:
        raise refuse(f"must be {MASK_KEY_FORM}")
    return Secret(value)


class Source(Section):
    """The database that is copied. For MySQL, MariaDB, and PostgreSQL 16 and later a read replica is enough. Tidemark writes to
    no table. Reading takes only the lock that a SELECT takes.
    """

    url: SourceUrl = Field(
        description="Server and login: `mysql://` or `mariadb://` (default port 3306), or `postgresql://` with the database "
        "to read (default port 5432). For MySQL and MariaDB the URL's database is only the connection's default; `tables` "
        "names the tables. User and password from `${NAME}` or `${file:/run/secrets/x}` need no percent-encoding.",
        examples=["mysql://cdc:${MYSQL_PASSWORD}@db:3306/", "postgresql://cdc:${PG_PASSWORD}@db:5432/shop"],
    )
    tables: Annotated[
        tuple[GlobOfTables, ...], Written('a list of tables and globs, like [shop.orders, "shop.cust*"]')
    ] = Field(
        min_length=1,
        description="Tables to copy, as `database.table` (PostgreSQL: `schema.table`) or as globs with `*`, `?`, `[abc]`, "
        "`[!abc]`. Names are case-sensitive. A name with a dot, a space or one of `*?[]` must be in backticks.",
        examples=[["shop.orders", "shop.cust*"]],
    )
    exclude_tables: Annotated[tuple[GlobOfTables, ...], Written("a list of tables and globs")] = Field(
        (), description="Tables that are not copied even if `tables` matches them.", examples=[["shop.*_old"]]
    )
    columns: Annotated[
        Mapping[NameOfTable, TableColumns],
        Written("a mapping from tables to {exclude: [column, …], mask: {column: kind, …}, as_text: [column, …]}"),
    ] = Field(
        {},
        description="For each table: columns to leave out or to mask.",
        examples=[{"shop.customers": {"exclude": ["ssn"], "mask": {"email": "sha256"}}}],
    )
    mask_key: (
        Annotated[
            Secret,
            PlainValidator(_mask_key),
            PlainSerializer(str, return_type=str),
            _TextSchema,
            Written(MASK_KEY_FORM),
        ]
        | None
    ) = Field(
        None,
        description="Key of the `sha256` masks: with a key they are HMAC-SHA-256, without one plain SHA-256. From a plain hash "
        "anybody can find an address or a number by trying values. The key is a secret: write it as `${NAME}` or "
        "`file:/run/secrets/x`.",
        examples=["${MASK_KEY}"],
    )
    keys: Annotated[
        Mapping[NameOfTable, Annotated[ColumnNames, AfterValidator(_without_repeats)]],
        Written("a mapping from tables to lists of columns"),
    ] = Field(
        {},
        description="For each table without a primary key: the columns that identify a row, a unique key without NULLs. "
        "PostgreSQL: none are needed where the replica identity is an index (`REPLICA IDENTITY USING INDEX`).",
        examples=[{"shop.events": ["event_uuid"]}],
    )
    server_ids: ServerIds | None = Field(
        None,
        description="MySQL, MariaDB: server ids for log connections, unique among the source's replicas. Each attempt of "
        "each reader uses a different one. Default: 1000 ids from 2147483648 on, derived from the job's name.",
        examples=["5400-5499"],
    )
    slot: Annotated[Text, AfterValidator(_slot_name), Written(SLOT_FORM)] | None = Field(
        None,
        description="PostgreSQL: the job's replication slot. It is created at the first start if it does not exist. "
        "Default: `tidemark_` and the job's name.",
        examples=["tidemark_shop_mirror"],
    )
    publication: Annotated[Text, AfterValidator(_publication_name), Written(PUBLICATION_FORM)] | None = Field(
        None,
        description="PostgreSQL: the publication of the tables. It is created at the first start if it does not exist and "
        "the role has the privilege. Default: `tidemark_` and the job's name.",
        examples=["tidemark_shop_mirror"],
    )
    standby: Flag = Field(
        False,
        description="PostgreSQL 16 and later: whether the server may be a standby that streams from its primary. The job's "
        "slot is on the standby; the publication must be created on the primary. Without this setting a standby is refused, or "
        "waited for as in a failover.",
        examples=[True],
    )
    on_table_error: Literal["park", "stop"] = Field(
        "park",
        description="What happens if one table can't be followed any more, and `sink.on_schema_change` does not help. "
        "`park`: the table is taken out of the job, and the others continue. Its copy stays as it is until `tidemark signal "
        "JOB.yaml resnapshot --table NAME` reads it again. A run that ends with parked tables has exit code 9. "
        "`stop`: the job stops. No table of mode `full` is parked.",
    )
    on_log_lost: Literal["resnapshot", "stop"] | None = Field(
        None,
        description="What happens if the source no longer has the log that the job needs: purged, reset, or its replication "
        "slot is gone or invalid. `resnapshot`: all rows of all tables are read again. "
        "If a promoted replica answers that does not have all that the job has read, only the rows are read again that these "
        "transactions changed, if these are known. The job still stops if an unrelated server answers, or if the log is lost a "
        "fourth time in a row before all rows were read. `stop`: the job stops. In modes other than full+incremental always "
        "`stop`. Default: "
        "`resnapshot`; MariaDB: `stop`, because nothing proves there that it is still the same server.",
    )
    cascades: Literal["refuse", "warn"] = Field(
        "refuse",
        description="MySQL, MariaDB: what happens to tables that foreign keys change by CASCADE or SET NULL where the server "
        "does not log these changes. `refuse`: the table is refused. `warn`: it is copied, and its copy keeps rows and values "
        "that such a key has deleted or changed. `tidemark reconcile JOB.yaml --repair` corrects them.",
    )
    discover_seconds: SecondsOrZero = Field(
        60.0,
        description="How often a job with an interval as trigger looks for new tables that `tables` selects, in seconds. They "
        "join while it runs. 0: it looks only at its start.",
    )
    partitions_removed: Literal["stop", "keep"] = Field(
        "stop",
        description="PostgreSQL: what happens if a partition of a copied table was detached, dropped or truncated, which the "
        "log does not show. `stop`: an error of the table (`on_table_error`). `keep`: it warns and continues, and "
        "the copy keeps the partition's rows.",
    )
    tls: Annotated[Tls | None, Written("a section with ca, cert, key, verify")] = Field(
        None,
        description="Encrypts connections and verifies the server. Without it connections are not encrypted.",
        examples=[{"ca": "./ca.pem", "verify": True}],
    )
    zero_dates: Annotated[Literal["null", "error"], BeforeValidator(_null_is_a_word)] = Field(
        "null",
        description="MySQL, MariaDB: what happens to invalid dates like 0000-00-00, and to those of the year 0. "
        "`null`: NULL in the copy. `error`: the "
        "table is parked (`on_table_error`).",
    )

    @property
    def reads_again_after_lost_log(self) -> bool:
        """Tells whether `on_log_lost` is `resnapshot`."""
        return (self.on_log_lost or ("stop" if self.url.kind == "mariadb" else "resnapshot")) == "resnapshot"

    def selects(self, database: str, table: str) -> bool:
        """Tells whether `tables` matches the table and `exclude_tables` does not."""
        return any(glob.matches(database, table) for glob in self.tables) and not any(
            glob.matches(database, table) for glob in self.exclude_tables
        )

    def excluded_columns(self, database: str, table: str) -> frozenset[str]:
        """Returns the columns of the table that are left out."""
        settings = self.columns.get(TableName(database, table))
        return frozenset() if settings is None else frozenset(settings.exclude)

    def masked_columns(self, database: str, table: str) -> Mapping[str, Mask]:
        """Returns the masks of the table by column."""
        settings = self.columns.get(TableName(database, table))
        return {} if settings is None else settings.mask

    def key_columns(self, database: str, table: str) -> tuple[str, ...] | None:
        """Returns the key that the file names for the table, None to use the table's own key."""
        return self.keys.get(TableName(database, table))
