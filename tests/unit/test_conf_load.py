"""Loading of job files: defaults, placement of keys, and the text of every refusal."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.job_file import SMALL, load_text, problems_of
from tidemark.conf.load import load_job_file
from tidemark.conf.model import MAX_JOB_NAME_LENGTH, JobFile
from tidemark.conf.problems import RefusedJobFileError
from tidemark.conf.quantities import Every, Once
from tidemark.conf.reading import StartAfterGtids, StartAtEnd, StartAtFile, StartAtLsn, StartAtTime
from tidemark.conf.redaction import forget_secrets
from tidemark.conf.source import ServerIdRange


@pytest.fixture(autouse=True)
def _secrets_of_one_test_only() -> Iterator[None]:
    yield
    forget_secrets()


FULL = """\
job: shop-mirror
mode: full+incremental
trigger: 30s
checkpoint: s3://bucket/checkpoints
source:
  url: mysql://cdc:pa55word@db/
  tables: [shop.orders, "shop.cust*", shop.events]
  exclude_tables: [shop.custom]
  columns: {shop.customers: {exclude: [ssn]}}
  keys: {shop.events: [event_uuid]}
  server_ids: 5400-5499
  tls: {verify: true}
  zero_dates: error
snapshot:
  split_rows: 1000
  parallelism: 2
  interleave: true
  where: {shop.orders: "created_at >= '2024-01-01'"}
log: {max_batch_bytes: 1GB, max_batch_seconds: 2.5}
reconnect: {attempts: 0, max_delay_seconds: 1}
sink:
  type: mirror
  url: postgresql://etl:hunter22@wh:5433/analytics
  table: "copy.{table}"
  on_schema_change: stop
spark:
  master: local[2]
  conf: {spark.executor.memory: 4g, spark.some.ratio: 1.10, spark.ui.enabled: false}
"""


def test_a_small_file_has_all_defaults(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL)
    assert (job.job, job.mode, job.trigger) == ("shop", "full+incremental", Once())
    assert job.has_snapshot
    assert (job.snapshot.split_rows, job.snapshot.parallelism, job.snapshot.interleave) == (50_000, 4, True)
    assert (job.log.max_batch_bytes, job.log.max_batch_seconds) == (67_108_864, 10)
    assert (job.source.tls, job.source.zero_dates, job.source.exclude_tables) == (None, "null", ())
    assert job.sink.type == "files"
    assert job.sink.format == "parquet"
    assert job.spark.master == "local[*]"
    assert [text for text in job.warnings() if ".tls: without it" not in text] == []


def test_every_key_arrives(tmp_path: Path) -> None:
    job = load_text(tmp_path, FULL)
    assert job.trigger == Every(30)
    assert job.checkpoint == "s3://bucket/checkpoints"
    assert job.source.selects("shop", "customers")
    assert not job.source.selects("shop", "custom")
    assert not job.source.selects("shop", "other")
    assert job.source.excluded_columns("shop", "customers") == {"ssn"}
    assert job.source.excluded_columns("shop", "orders") == frozenset()
    assert job.source.key_columns("shop", "events") == ("event_uuid",)
    assert job.source.key_columns("shop", "orders") is None
    assert job.server_ids == ServerIdRange(5400, 5499)
    assert job.snapshot.condition("shop", "orders") == "created_at >= '2024-01-01'"
    assert job.snapshot.condition("shop", "events") is None
    assert (job.log.max_batch_bytes, job.reconnect.attempts) == (10**9, 0)
    assert job.sink.type == "mirror"
    assert job.sink.url.port == 5433
    assert job.spark.conf_with_secrets() == {
        "spark.executor.memory": "4g",
        "spark.some.ratio": "1.10",
        "spark.ui.enabled": "false",
    }


def test_a_job_file_survives_pickling_with_its_secrets_and_shows_none(tmp_path: Path) -> None:
    job = load_text(tmp_path, FULL)
    copy = pickle.loads(pickle.dumps(job))
    assert copy == job
    assert copy.source.url.password.get_secret_value() == "pa55word"
    for text in (repr(copy), str(copy), copy.model_dump_json(), str(copy.model_dump()), str(copy.redacted())):
        assert "pa55word" not in text
        assert "hunter22" not in text


def test_the_redacted_form_does_not_change_with_a_secret_and_reads_back(tmp_path: Path) -> None:
    job = load_text(tmp_path, FULL)
    assert job.redacted() == load_text(tmp_path, FULL.replace("pa55word", "shop")).redacted()
    again = JobFile.model_validate(job.redacted())
    assert again.redacted() == job.redacted()
    assert job.redacted()["log"]["max_batch_bytes"] == "1GB"
    assert job.redacted()["trigger"] == "30s"


def test_a_job_file_cannot_be_changed(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL)
    with pytest.raises(ValueError, match="frozen"):
        job.mode = "full"  # type: ignore[misc]


def test_empty_sections_mean_their_defaults(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL + "snapshot:\nlog:\n  # start: latest\nspark: ~\n")
    assert job == load_text(tmp_path, SMALL)


def test_server_ids_follow_from_the_job_name_unless_given(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL)
    assert len(job.server_ids) == 1000
    assert 2**31 <= job.server_ids.first < job.server_ids.last < 2**32
    assert job.server_ids == load_text(tmp_path, SMALL).server_ids
    assert job.server_ids != load_text(tmp_path, SMALL, "job=other").server_ids


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ("earliest", StartAtEnd("earliest")),
        ("latest", StartAtEnd("latest")),
        ("{file: binlog.000012, pos: 157}", StartAtFile("binlog.000012", 157)),
        (
            "{gtid: '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5'}",
            StartAfterGtids("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"),
        ),
        ("{timestamp: 2024-01-31T12:00:00Z}", "2024-01-31T12:00:00Z"),
        ("{timestamp: '2024-01-31 13:00:00.5+01:00'}", "2024-01-31T12:00:00.500000Z"),
    ],
)
def test_log_start_is_typed_and_written_back(tmp_path: Path, written: str, start: object) -> None:
    job = load_text(tmp_path, SMALL, "mode=incremental", f"log.start={written}")
    if isinstance(start, str):
        assert isinstance(job.log_start, StartAtTime)
        assert job.log_start.as_written() == {"timestamp": start}
    else:
        assert job.log_start == start
    assert JobFile.model_validate(job.redacted()).log_start == job.log_start


def test_incremental_starts_at_the_latest_unless_told(tmp_path: Path) -> None:
    assert load_text(tmp_path, SMALL, "mode=incremental").log_start == StartAtEnd("latest")
    with pytest.raises(ValueError, match=r"mode full has no log\.start"):
        _ = load_text(tmp_path, SMALL, "mode=full").log_start


POSTGRES = "source.url=postgresql://cdc:p@db/shop"


def test_slot_and_publication_follow_from_the_job_name_unless_given(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL, POSTGRES, "job=shop-2-mirror")
    assert (job.slot, job.publication) == ("tidemark_shop_2_mirror", "tidemark_shop_2_mirror")
    job = load_text(tmp_path, SMALL, POSTGRES, "source.slot=s_1", "source.publication=Pub ä")
    assert (job.slot, job.publication) == ("s_1", "Pub ä")
    assert JobFile.model_validate(job.redacted()).redacted() == job.redacted()
    longest = load_text(tmp_path, SMALL, POSTGRES, f"job={'a' * MAX_JOB_NAME_LENGTH}")
    assert len(longest.slot) <= 63


def test_a_postgres_job_may_start_at_an_lsn(tmp_path: Path) -> None:
    job = load_text(tmp_path, SMALL, POSTGRES, "mode=incremental", "log.start={lsn: 16/b374D848}")
    assert job.log_start == StartAtLsn(0x16B374D848)
    assert job.log_start.as_written() == {"lsn": "16/B374D848"}
    assert JobFile.model_validate(job.redacted()).log_start == job.log_start


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([POSTGRES, "source.server_ids=1-9"], "source.server_ids: is for MySQL and MariaDB sources only"),
        ([POSTGRES, "source.zero_dates=error"], "source.zero_dates: is for MySQL and MariaDB sources only"),
        (
            [POSTGRES, "snapshot.max_replica_lag_seconds=30"],
            "snapshot.max_replica_lag_seconds: is for MySQL and MariaDB sources only",
        ),
        (
            [POSTGRES, "mode=incremental", "log.start={gtid: 0-1-1}"],
            "log.start: is for MySQL and MariaDB sources only",
        ),
        (["mode=incremental", "log.start={lsn: 0/1}"], "log.start: is for PostgreSQL sources only"),
        (["mode=incremental", "log.start={gtid: 0-1-1}"], "log.start.gtid: must be a GTID set of MySQL"),
        (
            ["source.url=mariadb://u@h/", "mode=incremental", "log.start={gtid: 'uuid:1'}"],
            "log.start.gtid: must be a GTID position of MariaDB",
        ),
        (
            [POSTGRES, "log.ignore_statements_on=[ops.beat]"],
            "log.ignore_statements_on: is for MySQL and MariaDB sources only",
        ),
        (["log.apply_parallelism=2"], "log.apply_parallelism: is for sink.type mirror only"),
        (
            ["log.ignore_statements_on=[shop.beat]", "source.tables=['shop.*', shop.beat]"],
            "log.ignore_statements_on: has shop.beat, which is copied",
        ),
        (['log.ignore_statements_on=["ops.*"]'], "log.ignore_statements_on"),
        (
            ["source.columns={shop.t: {as_text: [a]}}"],
            'source.columns."shop.t".as_text: is for arrays of PostgreSQL: no other source has any',
        ),
        (
            [POSTGRES, "source.tables=[public.*]", "sink={type: mirror, url: 'postgresql://u:p@db/shop'}"],
            "sink.table: would write public.x to public.public_x on the same server",
        ),
    ],
)
def test_keys_of_another_kind_of_source_are_refused(tmp_path: Path, overrides: list[str], reason: str) -> None:
    (problem,) = problems_of(tmp_path, SMALL, *overrides)
    assert reason in problem


def test_a_mirror_may_stand_in_another_database_or_schema_of_its_postgres_source(tmp_path: Path) -> None:
    source = (POSTGRES, "source.tables=[public.*]")
    load_text(tmp_path, SMALL, *source, "sink={type: mirror, url: 'postgresql://u:p@db/other'}")
    load_text(tmp_path, SMALL, *source, "sink={type: mirror, url: 'postgresql://u:p@db/shop', table: 'copy.{table}'}")


def test_relative_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("", encoding="utf-8")
    job = load_text(tmp_path, SMALL, "checkpoint=./cp/../state", "sink.path=out", "source.tls.ca=ca.pem")
    assert job.checkpoint == str(tmp_path / "state")
    assert job.sink.type == "files"
    assert job.sink.path == str(tmp_path / "out")
    assert job.source.tls is not None
    assert job.source.tls.ca == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    "uri", ["hdfs://nn/cp", "s3a://bucket/cp", "file:/mnt/cp", "file:///mnt/cp", "/mnt/cp", "memory:cp"]
)
def test_absolute_paths_and_uris_stay(tmp_path: Path, uri: str) -> None:
    assert load_text(tmp_path, SMALL, f"checkpoint={uri}").checkpoint == uri


def test_warnings_tell_what_may_surprise(tmp_path: Path) -> None:
    job = load_text(tmp_path, FULL, "mode=incremental", "source.tls.verify=false", "sink.tls={verify: false}")
    assert job.warnings() == [
        "snapshot: is not used in mode incremental",
        "source.tls.verify: false lets another machine in the network impersonate db",
        "sink.tls.verify: false lets another machine in the network impersonate wh",
    ]


def test_a_log_reader_has_an_id_for_the_time_in_which_it_connects_again(tmp_path: Path) -> None:
    reason = r"has 1 ids, but the log reader needs 2\. Twice as many let retries find free ones"
    with pytest.raises(RefusedJobFileError, match=reason):
        load_text(tmp_path, FULL, "mode=incremental", "source.server_ids=7-7")
    assert len(load_text(tmp_path, FULL, "mode=incremental", "source.server_ids=7-8").server_ids) == 2


REFUSED = [
    ("job=Shop", "job: must be a name of a-z, 0-9 and '-', at most 50 characters; found: Shop"),
    (f"job={'a' * 51}", "job: must be a name of a-z, 0-9 and '-', at most 50 characters"),
    (
        "job=2024",
        "job: must be a name of a-z, 0-9 and '-'; found: 2024. Text that looks like a number or truth value must be "
        "in quotes",
    ),
    ("job=", "job: must be a name of a-z, 0-9 and '-'; found: nothing"),
    ("mode=ful", "mode: must be full | incremental | full+incremental; found: ful. Did you mean 'full'?"),
    ("mode=xyz", "mode: must be full | incremental | full+incremental; found: xyz"),
    ("trigger=30", "trigger: must be once, or an interval like 1s, 30s, 5m, 1h; found: 30. Write the unit: 30s"),
    ("trigger=onse", "trigger: must be once, or an interval like 1s, 30s, 5m, 1h; found: onse"),
    ("trigger=[1s]", "trigger: must be once, or an interval like 1s, 30s, 5m, 1h"),
    ("checkpoint=''", 'checkpoint: must be a path, not empty; found: ""'),
    ("checkpoint=~/cp", "checkpoint: must not start with '~', which may be another folder on executors; write ${HOME}"),
    (
        "checkpoint=s3://key:secret@bucket/",
        "checkpoint: must not contain a password; give it in spark.conf or in the environment of all nodes",
    ),
    ("chekpoint=/x", "chekpoint: unknown key. Did you mean 'checkpoint'? Allowed here: "),
    ("transforms=[a]", 'transforms: must be a mapping from tables to SQL, like {shop.orders: "SELECT * FROM input"}'),
    ("transforms.shop.orders=5", 'transforms."shop.orders": must be SQL like "SELECT * FROM input"; found: 5'),
    ("transforms.shop.orders=SELECT 1 AS x", 'transforms."shop.orders": must read FROM input and nothing else'),
    (
        "transforms.shop.orders=SELECT now() AS x FROM input",
        'transforms."shop.orders": calls now, whose result may differ',
    ),
    ("source=x", "source: must be a section of keys; found: x"),
    ("source.url=5", "source.url: must be a database URL"),
    ("source.url=db:3306", "source.url: must be a database URL like mysql://user:password@host:3306/database"),
    (
        "source.url=postgresql://u:p@h",
        "source.url: names no database: write postgresql://user:password@host:5432/database",
    ),
    ("source.tables=[]", 'source.tables: must be a list of tables and globs, like [shop.orders, "shop.cust*"]'),
    (
        "source.tables=shop.*",
        'source.tables: must be a list of tables and globs, like [shop.orders, "shop.cust*"]; found: shop.*',
    ),
    (
        "source.tables=[a.b, orders]",
        'source.tables[1]: must be a table or glob as database.table, like shop.orders or "shop.*"; '
        "'orders' names no database; found: orders",
    ),
    (
        "source.tables=[my shop.orders]",
        'source.tables[0]: must be a table or glob as database.table, like shop.orders or "shop.*"; '
        "a name with a space or a backtick must be in backticks: shop.`old orders`; found: my shop.orders",
    ),
    (
        "source.tables=[{a: b}]",
        'source.tables[0]: must be a table or glob as database.table, like shop.orders or "shop.*"',
    ),
    (
        "source.exclude_tables=[1]",
        'source.exclude_tables[0]: must be a table or glob as database.table, like shop.orders or "shop.*"; found: 1',
    ),
    (
        "source.columns={shop.c*: {exclude: [a]}}",
        'source.columns."shop.c*": must be a table as database.table; globs are not allowed here '
        "(a name with '*?[]' must be in backticks)",
    ),
    ("source.columns.shop.c=[a]", 'source.columns."shop.c": must be a section of keys'),
    (
        "source.columns.shop.c.mask=[a]",
        'source.columns."shop.c".mask: must be a mapping from columns to sha256 | redact | ',
    ),
    (
        "source.columns.shop.c.mask={a: md5}",
        'source.columns."shop.c".mask.a: must be sha256 | redact | null; found: md5',
    ),
    (
        "source.columns.shop.c={mask: {a: sha256}, exclude: [a]}",
        "source.columns.\"shop.c\".mask: masks 'a', which is excluded",
    ),
    ("source.mask_key=fifteen letters", "source.mask_key: must be text of 16 characters or more"),
    ("source.mask_key=5", "source.mask_key: must be text of 16 characters or more"),
    (
        "source.columns.shop.c.exlude=[a]",
        "source.columns.\"shop.c\".exlude: unknown key. Did you mean 'exclude'? Allowed here: exclude",
    ),
    ("source.columns.shop.c.exclude=[1]", 'source.columns."shop.c".exclude[0]: must be text; found: 1'),
    ("source.keys.shop.c=[]", 'source.keys."shop.c": must be a list of column names, like [id, email]'),
    ("source.columns.shop.c.exclude=[a, a]", "source.columns.\"shop.c\".exclude: names 'a' twice"),
    ("source.keys.shop.c=a", 'source.keys."shop.c": must be a list of column names, like [id, email]; found: a'),
    ("source.keys.shop.c=[a, a]", "source.keys.\"shop.c\": names 'a' twice"),
    ("source.keys.orders=[a]", "source.keys.orders: must be a table as database.table; 'orders' names no database"),
    ("source.server_ids=5400", "source.server_ids: must be a range of server ids like 5400-5499; found: 5400"),
    (
        "source.server_ids=9-5",
        "source.server_ids: must be a range of server ids like 5400-5499: "
        "the lower id first, both from 1 to 4294967295; found: 9-5",
    ),
    ("source.server_ids=0-10", "the lower id first, both from 1 to 4294967295"),
    ("source.server_ids=1-4294967296", "the lower id first, both from 1 to 4294967295"),
    (
        "source.server_ids=1-4",
        "source.server_ids: has 4 ids, but 4 splits and the log reader need 5. Twice as many let retries find free "
        "ones",
    ),
    ("source.slot=x", "source.slot: is for PostgreSQL sources only"),
    ("source.standby=true", "source.standby: is for PostgreSQL sources only"),
    ("source.slot=Upper", "source.slot: must be a name of a-z, 0-9 and '_', at most 63 characters; found: Upper"),
    ("source.publication=x", "source.publication: is for PostgreSQL sources only"),
    ("source.publication=''", "source.publication: must be a name of at most 63 bytes"),
    ("source.tls=true", "source.tls: must be a section with ca, cert, key, verify; found: true"),
    ("source.tls.verify=yes", "source.tls.verify: must be true or false; found: yes"),
    ("source.tls.ca=/no/such.pem", "source.tls.ca: the file /no/such.pem does not exist or can't be read"),
    ("source.tls.cert=/dev/null", "source.tls.cert: is given alone: cert and key go together"),
    ("source.zero_dates=nul", "source.zero_dates: must be null | error; found: nul. Did you mean 'null'?"),
    ("snapshot.split_rows=many", "snapshot.split_rows: must be a whole number, at least 1; found: many"),
    ("snapshot.split_rows='5'", 'snapshot.split_rows: must be a whole number, at least 1; found: "5"'),
    ("snapshot.split_rows=0", "snapshot.split_rows: must be a whole number, at least 1; found: 0"),
    ("snapshot.split_rows=1.5", "snapshot.split_rows: must be a whole number, at least 1; found: 1.5"),
    ("snapshot.split_rows=true", "snapshot.split_rows: must be a whole number, at least 1; found: true"),
    ("snapshot.parallelism=-1", "snapshot.parallelism: must be a whole number, at least 1; found: -1"),
    ("snapshot.interleave=on", "snapshot.interleave: must be true or false; found: on"),
    ("snapshot.where.shop.c=5", 'snapshot.where."shop.c": must be an SQL condition as text; found: 5'),
    ("snapshot.where.shop.c=''", 'snapshot.where."shop.c": is empty; leave the table out to read all its rows'),
    (
        "snapshot.where.shop.c=where a = 1",
        'snapshot.where."shop.c": must be the condition alone, without the word WHERE',
    ),
    ("snapshot.where.shop.c=a = 1; drop", "must be one condition; ';' is not allowed outside quotes"),
    ("snapshot.where.shop.c=a = 1) or (b", "has an unpaired parenthesis"),
    ("snapshot.where.shop.c=(a = 1", "has an unpaired parenthesis"),
    ("snapshot.where.shop.c=a = 'x", "has an unpaired quote '"),
    ("snapshot.where.shop.c=a = 1 -- x", "must not have a comment sign (--) outside quotes"),
    ("snapshot.where.shop.c='a = 1 # x'", "must not have a comment sign (#) outside quotes"),
    ("snapshot.where.shop.c=a /* x */ = 1", "must not have a comment sign (/*) outside quotes"),
    ("log.start=lates", "found: lates. Did you mean 'latest'?"),
    ("log.start=5", "log.start: must be earliest | latest | {file: binlog.000001, pos: 4}"),
    ("log.start={}", "log.start: must be one of earliest | latest"),
    ("log.start={file: a.1}", "log.start: must have both file and pos, or be one of earliest | latest"),
    ("log.start={file: a.1, pos: 3}", "log.start.pos: must be a whole number, at least 4; found: 3"),
    ("log.start={file: '', pos: 4}", "log.start.file: must be text like binlog.000001"),
    ("log.start={file: a.1, pos: 4, gtid: x}", "log.start: must be one of earliest | latest"),
    ("log.start={gtid: 5}", "log.start.gtid: must be text like"),
    (
        "log.start={lsn: 0x1}",
        "log.start.lsn: must be a position in PostgreSQL's log (LSN) like 16/B374D848",
    ),
    ("log.start={lsn: 0/123456789}", "log.start.lsn: must be a position in PostgreSQL's log (LSN) like 16/B374D848"),
    (
        "log.start={tiemstamp: x}",
        "log.start.tiemstamp: unknown key. Did you mean 'timestamp'? Allowed here: file, pos, gtid, lsn, timestamp",
    ),
    (
        "log.start={timestamp: 2024-01-31T12:00:00}",
        "log.start.timestamp: has no time zone; must be a date and time with a time zone",
    ),
    ("log.start={timestamp: 2024-02-31T12:00:00Z}", "log.start.timestamp: does not exist in the calendar"),
    (
        "log.start={timestamp: 1700000000}",
        "log.start.timestamp: must be a date and time with a time zone, like 2024-01-31T12:00:00Z",
    ),
    (
        "log.start=latest",
        "log.start: is allowed only in mode incremental: mode full+incremental starts with the snapshot",
    ),
    (
        "log.max_batch_bytes=64M",
        "log.max_batch_bytes: must be a size like 64MiB or 1.5GB, or a number of bytes; found: 64M. "
        "'M' is not a unit. Did you mean 'MiB'?",
    ),
    ("log.max_batch_bytes=[1]", "log.max_batch_bytes: must be a size like 64MiB or 1.5GB, or a number of bytes"),
    ("log.max_batch_seconds=10s", "log.max_batch_seconds: must be a number of seconds above 0; found: 10s"),
    ("log.max_batch_seconds=0", "log.max_batch_seconds: must be a number of seconds above 0; found: 0"),
    ("log.max_batch_seconds=true", "log.max_batch_seconds: must be a number of seconds above 0; found: true"),
    ("log.max_batch_seconds=1e999", "log.max_batch_seconds: must be a number of seconds above 0; found: 1e999"),
    ("reconnect.attempts=-1", "reconnect.attempts: must be a whole number, at least 0; found: -1"),
    (
        "reconnect.atempts=1",
        "reconnect.atempts: unknown key. Did you mean 'attempts'? Allowed here: attempts, max_delay_seconds",
    ),
    ("sink=files", "sink: must be a section with type: mirror | files | delta | console; found: files"),
    (
        "sink.type=mirrror",
        "sink.type: must be mirror | files | delta | console; found: mirrror. Did you mean 'mirror'?",
    ),
    ("sink={type: delta, path: /x, style: upsert}", "sink.style: must be mirror | changelog; found: upsert"),
    (
        "sink={type: delta, path: /x, on_schema_change: {drop_column: drop}}",
        "sink.on_schema_change.drop_column: must not be drop for sink.type delta: Delta drops columns only of tables with "
        "column mapping, which the job's tables don't have, because older readers could not read them. Allowed: evolve, stop, "
        "ignore",
    ),
    ("sink={type: delta}", "sink.path: is missing; write it, or sink.catalog"),
    (
        "sink={type: delta, path: /x, catalog: main}",
        "sink.catalog: is given together with sink.path: choose one of the two",
    ),
    (
        "sink={type: delta, path: /x, style: changelog, audit_columns: {deleted: gone}}",
        "sink.audit_columns: is for style: mirror only; a changelog has every DELETE, and _commit_timestamp",
    ),
    (
        'sink={type: delta, path: /x, table: "{schema}"}',
        "sink.table: does not contain {table}: all tables would be written to one table",
    ),
    (
        "sink={type: files, path: /x, table: all}",
        "sink.table: does not contain {table}: all tables would be written to one table",
    ),
    (
        "sink={type: delta, catalog: main.lake}",
        "sink.catalog: must be a catalog's name, like main; write the schema in sink.table; found: main.lake",
    ),
    (
        'sink={type: delta, catalog: main, table: "{schema}_{table}"}',
        'sink.table: names no schema: write one like "{schema}.{table}" or "lake.{table}"',
    ),
    (
        'sink={type: delta, catalog: main, table: "lake.{schema}"}',
        "sink.table: does not contain {table}: all tables would be written to one table",
    ),
    (
        "sink={type: delta, path: /x, partition_by: {shop.orders: country}}",
        'sink.partition_by."shop.orders": must be a list of column names, like [id, email]',
    ),
    (
        "sink.type=iceberg",
        "sink.type: the sink type iceberg is not supported yet; for tables in a lake, sink.type delta has a mirror or a "
        "changelog. Allowed: mirror, files, delta, console",
    ),
    (
        "sink.type=Kafka",
        "sink.type: the sink type kafka is not supported yet; for every change in its order, sink.type files writes JSON Lines "
        "or Parquet, and delta has style changelog. Allowed: mirror, files, delta, console",
    ),
    (
        "snapshot.on_table_error=park",
        "snapshot.on_table_error: unknown key. It is source.on_table_error. Allowed here:",
    ),
    ("sink={path: /x}", "sink.type: is missing. Allowed: mirror, files, delta, console"),
    (
        "sink={typ: files}",
        "sink.typ: unknown key. Did you mean 'type'? Allowed here: type, path, format, table, rename, merge_small_files, "
        "on_bad_value, on_bad_value_in, on_schema_change",
    ),
    ("sink.format=parket", "sink.format: must be parquet | jsonl; found: parket. Did you mean 'parquet'?"),
    (
        "sink.url=x",
        "sink.url: unknown key. Allowed here: type, path, format, table, rename, merge_small_files, on_bad_value, "
        "on_bad_value_in, on_schema_change",
    ),
    (
        "sink.on_schema_change=ignore",
        "sink.on_schema_change: must not be ignore for all kinds: rename_column and change_type can't be ignored. Write "
        "{add_column: ignore, drop_column: ignore, truncate: ignore, drop_table: ignore}, or some of these",
    ),
    (
        "sink.on_schema_change=stopp",
        "sink.on_schema_change: must be evolve | stop, or kinds like {add_column: ignore, truncate: stop}; found: stopp. Did "
        "you mean 'stop'?",
    ),
    (
        "sink.on_schema_change={rename_column: ignore}",
        "sink.on_schema_change.rename_column: must not be ignore: the column's values come under its new name, and the copy "
        "would get none of them. Allowed: evolve, stop",
    ),
    (
        "sink.on_schema_change={change_type: ignore}",
        "sink.on_schema_change.change_type: must not be ignore: the copy's column need not hold the new values. Allowed: "
        "evolve, stop",
    ),
    (
        "sink.on_schema_change={drop_column: dropp}",
        "sink.on_schema_change.drop_column: must be evolve | drop | stop | ignore; found: dropp. Did you mean 'drop'?",
    ),
    (
        "sink.on_schema_change={truncate: drop}",
        "sink.on_schema_change.truncate: must be evolve | stop | ignore; found: drop",
    ),
    (
        "sink.on_schema_change={add_colum: stop}",
        "sink.on_schema_change.add_colum: unknown key. Did you mean 'add_column'? Allowed here: add_column, drop_column, "
        "rename_column, change_type, truncate, drop_table",
    ),
    (
        "spark.master=5",
        "spark.master: must be text; found: 5. Text that looks like a number or truth value must be in quotes",
    ),
    (
        "spark.conf={executor.memory: 4g}",
        "spark.conf.\"executor.memory\": must start with 'spark.' (Hadoop's settings with 'spark.hadoop.'); "
        "Spark ignores others",
    ),
    ("spark.conf.spark.master=x", 'spark.conf."spark.master": is not allowed here; use spark.master'),
    ("spark.conf.spark.x=[1]", 'spark.conf."spark.x": must be text or a number'),
    ("spark.conf.spark.x=", 'spark.conf."spark.x": must be text or a number'),
    ("spark.conf=x", "spark.conf: must be a mapping from Spark's settings to texts or numbers"),
    ("mode=full", "trigger: must be once in mode full: such a job ends by itself"),
]


@pytest.mark.parametrize(("override", "reason"), REFUSED)
def test_what_is_wrong_is_refused_with_its_key_and_what_is_allowed(tmp_path: Path, override: str, reason: str) -> None:
    overrides = [override, "trigger=1s"] if override == "mode=full" else [override]
    problems = problems_of(tmp_path, SMALL, *overrides)
    assert [problem for problem in problems if reason in problem], problems
    assert len(problems) == 1, problems


MIRROR = ("sink={type: mirror, url: 'mysql://u:p@db/shop'}", "source.tables=[a.b]")
REFUSED_MIRRORS = [
    (
        ["sink.url=postgresql://u:p@h/"],
        "sink.url: names no database: write postgresql://user:password@host:5432/database",
    ),
    (
        ["sink.url=mysql://u:p@h/"],
        'sink.url: names no database, and neither does sink.table: write …/database here, or table: "copy.{table}"',
    ),
    (["sink.rename=[{match: '(', to: x}]"], "sink.rename[0].match: is not a regular expression of Python: missing )"),
    (
        ["sink.rename=[{match: '(a)', to: '\\2'}]"],
        "sink.rename[0].to: can't be used with this match: invalid group reference 2",
    ),
    (
        ["sink.rename=[{match: a, to: b}, {match: '(a)', to: '$1'}]"],
        "sink.rename[1].to: has '$' before a group; write the first group as \\1",
    ),
    (
        ["sink.rename=[{match: '(.*)', to: 'copy.\\1'}]"],
        "sink.rename[0].to: must be the name of a table, without a schema: sink.table names the schema",
    ),
    (["sink.rename=[{match: a}]"], "sink.rename[0].to: is missing; it must be text"),
    (["sink.rename={match: a, to: b}"], "sink.rename: must be a list of rules like {match: ^shop_(.*)$, to: \\1}"),
    (["sink.table='{tabel}'"], "sink.table: has an unknown placeholder {tabel}. Allowed: {schema}, {table}"),
    (
        ["sink.table={table}"],
        'sink.table: must be a template like "{schema}_{table}" or "copy.{table}"; a value that starts with \'{\' '
        "must be in quotes",
    ),
    (
        ["sink.table=all", "source.tables=[a.*]"],
        "sink.table: does not contain {table}: all tables would be written to one table",
    ),
    (
        ["sink.table='{schema}.{table}'"],
        "sink.table: would write a.b to a.b on the same server, and source.tables selects that too",
    ),
    (
        ["sink.table='{table}'", "source.tables=[shop.*]"],
        "sink.table: would write shop.x to shop.x on the same server, and source.tables selects that too",
    ),
    (
        ["source.tables=[shop.*]"],
        "sink.table: would write shop.x to shop.shop_x on the same server, and source.tables selects that too",
    ),
    (["sink.tls.key=/dev/null"], "sink.tls.key: is given alone: cert and key go together"),
    (
        ["source.keys.a.b=[id]", "source.columns.a.b.exclude=[id]"],
        "source.keys.\"a.b\": has 'id', which source.columns excludes",
    ),
]


@pytest.mark.parametrize(("overrides", "reason"), REFUSED_MIRRORS)
def test_mirrors_that_cannot_be_meant_are_refused(tmp_path: Path, overrides: list[str], reason: str) -> None:
    problems = problems_of(tmp_path, SMALL, *MIRROR, *overrides)
    assert [problem for problem in problems if reason in problem], problems
    assert len(problems) == 1, problems


@pytest.mark.parametrize(
    "overrides",
    [
        ["sink.table=all"],
        ["sink.table='copy.{table}'", "source.tables=[shop.*]"],
        ["source.tables=[shop.*]", "source.exclude_tables=[shop.shop_*]"],
        ["sink.table='{table}'", "source.tables=[shop.*]", "sink.url=mysql://u:p@db:3307/shop"],
    ],
)
def test_mirrors_that_can_be_meant_are_allowed(tmp_path: Path, overrides: list[str]) -> None:
    assert load_text(tmp_path, SMALL, *MIRROR, *overrides).sink.type == "mirror"


@pytest.mark.parametrize(
    "condition", ["a = ';' and b = \"--\"", "(a > 1) or (b = '(''')", "a - -1 > 0", "j->'$.x' = 1", "`#` = 1"]
)
def test_conditions_that_can_be_embedded_are_kept_as_they_are(tmp_path: Path, condition: str) -> None:
    job = load_text(tmp_path, SMALL + f"snapshot:\n  where:\n    shop.orders: |-\n      {condition}\n")
    assert job.snapshot.condition("shop", "orders") == condition


def test_every_problem_is_told_with_its_line_in_the_files_order(tmp_path: Path) -> None:
    text = (
        SMALL.replace("job: shop", "job: Shop").replace("type: files", "typ: mirror") + "snapshot: {split_rows: no}\n"
    )
    assert problems_of(tmp_path, text, "trigger=5") == [
        "job.yaml:1: job: must be a name of a-z, 0-9 and '-', at most 50 characters; found: Shop",
        "job.yaml:7: sink.typ: unknown key. Did you mean 'type'? Allowed here: type, url, table, rename, tls, keyless, "
        "audit_columns, on_bad_value, on_bad_value_in, on_schema_change",
        "job.yaml:9: snapshot.split_rows: must be a whole number, at least 1; found: no",
        "--set trigger: must be once, or an interval like 1s, 30s, 5m, 1h; found: 5. Write the unit: 5s",
    ]


def test_the_error_ends_with_one_line_of_cause_and_remedy_and_pickles(tmp_path: Path) -> None:
    with pytest.raises(RefusedJobFileError) as caught:
        load_text(tmp_path, SMALL, "job=A", "mode=x")
    *problems, last = str(caught.value).splitlines()
    assert problems == [str(problem) for problem in caught.value.problems]
    remedy = "Correct the job file. The page Job file of Tidemark's documentation lists every key."
    assert last == f"job.yaml has 2 problems. The first one: {problems[0]}. Remedy: {remedy}"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.problems == caught.value.problems


def test_missing_keys_are_told_with_what_they_must_be(tmp_path: Path) -> None:
    assert problems_of(tmp_path, "source: {}\n") == [
        "job.yaml:1: job: is missing; it must be a name of a-z, 0-9 and '-'",
        "job.yaml:1: checkpoint: is missing; it must be a path, relative to the job file's folder, or a URI like "
        "s3://…",
        "job.yaml:1: source.url: is missing; it must be a URL like mysql://user:password@host:3306/, mariadb://… or "
        "postgresql://…/database",
        "job.yaml:1: source.tables: is missing; it must be a list of tables and globs, like [shop.orders, "
        '"shop.cust*"]',
        "job.yaml:1: sink: is missing; it must be a section with type: mirror | files | delta | console",
    ]
    assert len(problems_of(tmp_path, "")) == 4


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    def reason(path: Path) -> str:
        with pytest.raises(RefusedJobFileError) as caught:
            load_job_file(path)
        return str(caught.value)

    assert "no.yaml: can't be read: No such file or directory" in reason(tmp_path / "no.yaml")
    assert "can't be read: Is a directory" in reason(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"job: x\ncheckpoint: \xff\n")
    assert "binary.yaml:2: is not UTF-8 text" in reason(binary)
    binary.write_bytes(b"#" * 1_048_577)
    assert "is larger than 1 MiB" in reason(binary)


@given(st.text(max_size=40))
def test_any_text_is_refused_by_a_job_file_error_only(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "job.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RefusedJobFileError):
        load_job_file(path, (), {})
