"""`tidemark init`: the first job file of a source is valid, and says what is left out."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from devtools.servers import start_server
from tests.support.cli import CommandLine, Ended
from tests.support.mysql_accounts import account
from tests.support.servers import Database
from tidemark.conf.endpoint import Endpoint, parse_endpoint
from tidemark.conf.load import load_job_file
from tidemark.conf.redaction import Secret
from tidemark.jobs.commands.init import init
from tidemark.state.errors import JobFileError, SourceNotUsableError

pytestmark = [pytest.mark.integration, pytest.mark.once_per_family]


@dataclass
class Case:
    database: Database
    endpoint: Endpoint
    folder: Path
    tidemark: CommandLine

    @property
    def variable(self) -> str:
        return f"{self.database.name.upper()}_PASSWORD"

    @property
    def password(self) -> str:
        return self.endpoint.password.get_secret_value()

    def init(self, url: str, *arguments: str, expect: int = 0, **environment: str) -> Ended:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            ended = self.tidemark("init", url, *arguments)
        assert ended.code == expect, ended.err
        return ended


@pytest.fixture
def case(any_source_database: Database, tidemark: CommandLine, tmp_path: Path) -> Iterator[Case]:
    database = any_source_database
    database.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "CREATE TABLE events (v INT)")
    with contextlib.ExitStack() as stack:
        if database.kind == "postgres":
            endpoint = replace(parse_endpoint(database.url), password=Secret("not@asked/for"))
        else:
            client = "BINLOG MONITOR" if database.kind == "mariadb" else "REPLICATION CLIENT"
            all_grants = [f"SELECT ON `{database.name}`.*", f"REPLICATION SLAVE, {client} ON *.*"]
            if database.kind == "mysql":
                all_grants += ["BACKUP_ADMIN, XA_RECOVER_ADMIN ON *.*", "SELECT ON performance_schema.log_status"]
            found = stack.enter_context(account(database.server, *all_grants))
            endpoint = replace(found, database=database.name)
        yield Case(database, endpoint, tmp_path, tidemark)


def test_a_first_job_file_is_valid_and_has_no_password(case: Case) -> None:
    path = case.folder / "job.yaml"
    told = case.init(case.endpoint.url_with_password(), "-o", str(path))
    text = path.read_text()
    assert case.password not in text + told.out + told.err
    assert f"export {case.variable}=…" in told.out
    events = f"{case.database.schema}.events"
    assert f"warning: {events} is left out." in told.err
    assert f"${{{case.variable}}}" in text
    assert "GRANT SELECT" in text
    job = load_job_file(path, environ={case.variable: case.password})
    assert job.source.selects(case.database.schema, "orders")
    assert not job.source.selects(case.database.schema, "events")
    assert job.source.url == case.endpoint or job.source.url == replace(case.endpoint, database=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(case.variable, case.password)
        assert case.tidemark("validate", path, "--connect").code == 0
    case.init(case.endpoint.url_with_password(), "-o", str(path), expect=2)  # it is there
    assert path.read_text() == text


def test_the_password_comes_from_the_environment(case: Case) -> None:
    url = replace(case.endpoint, password=Secret("")).url_with_password()
    named = url.replace("@", ":${SOURCE_LOGIN}@", 1)
    printed = case.init(named, SOURCE_LOGIN=case.password).out
    assert ":${SOURCE_LOGIN}@" in printed
    case.init(named, expect=2)
    printed = case.init(url, **{case.variable: case.password}).out
    assert f"${{{case.variable}}}" in printed


def test_what_can_t_be_copied_is_said(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE events (v INT)")
    url = f"{mysql_database.server.url}{mysql_database.name}"
    with pytest.raises(SourceNotUsableError, match=r"No table of .* can be copied\. .*events: .*no primary key"):
        init(url, tmp_path / "job.yaml")
    assert not list(tmp_path.iterdir())
    with pytest.raises(JobFileError, match="has an unknown scheme"):
        init("oracle://cdc@db/", None)
    with pytest.raises(JobFileError, match="names no database"):
        init("postgresql://cdc@db/", None)


def test_names_that_need_quotes(mysql_database: Database, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)", "CREATE TABLE `odd.na:me #1` (id INT)")
    path = tmp_path / "job.yaml"
    init(f"{mysql_database.server.url}{mysql_database.name}", path)
    job = load_job_file(path)
    assert job.source.selects(mysql_database.name, "orders")
    assert not job.source.selects(mysql_database.name, "odd.na:me #1")


def test_grants_have_names_as_postgresql_needs_them(postgres_database: Database, tmp_path: Path) -> None:
    postgres_database.execute('CREATE SCHEMA "Sales"', 'CREATE TABLE "Sales".t (id int PRIMARY KEY)')
    init(postgres_database.url, path := tmp_path / "job.yaml")
    found = re.search(r"(GRANT USAGE ON SCHEMA .*;) (GRANT SELECT .*;)", path.read_text())
    assert found is not None
    postgres_database.execute(*found.groups())


def test_without_a_database_all_of_the_server_are_taken(tmp_path: Path) -> None:
    with start_server("mariadb") as server:
        with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
            for name in ("`shop-1`", "crm"):
                cursor.execute(f"CREATE DATABASE {name}")
                cursor.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)")
            cursor.execute("CREATE DATABASE empty")
        init(server.url, path := tmp_path / "job.yaml")
        source = load_job_file(path).source
    assert "GRANT SELECT ON crm.* TO" in path.read_text()
    assert "The same for `shop-1`.*" in path.read_text()
    assert source.selects("shop-1", "t")
    assert source.selects("crm", "t")
    assert not source.selects("empty", "t")
    assert not source.selects("mysql", "user")
