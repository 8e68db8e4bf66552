"""The connections and files that the start of a job leaves."""

import time
from pathlib import Path

import pytest

from tests.support.epochs import Notes
from tests.support.jobs import write_job
from tests.support.mysql_accounts import account
from tests.support.servers import Database
from tidemark.conf.load import load_job_file
from tidemark.jobs.startup import hold_job

pytestmark = pytest.mark.integration


def test_a_held_job_keeps_the_connection_of_its_lease_alone(source_database: Database, tmp_path: Path) -> None:
    source_database.execute("CREATE TABLE orders (id INT PRIMARY KEY)")
    server = source_database.server
    grants = [f"SELECT ON {source_database.name}.*", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"]
    if server.kind == "mysql":
        grants += ["BACKUP_ADMIN, XA_RECOVER_ADMIN ON *.*", "SELECT ON performance_schema.log_status"]
    with account(server, *grants) as endpoint:
        url = f"{endpoint.kind}://{endpoint.user}:{endpoint.password.get_secret_value()}@{server.host}:{server.port}/"
        source = {"url": url, "tables": [f"{source_database.name}.orders"]}
        job = load_job_file(write_job(tmp_path, source=source, sink={"type": "console"}))

        def connections() -> int:
            found = source_database.query(f"SELECT COUNT(*) FROM {server.processlist} WHERE user = '{endpoint.user}'")
            return int(found[0][0])

        with hold_job(job, Notes()):
            deadline = time.monotonic() + 20
            while connections() > 1 and time.monotonic() < deadline:  # the server ends a closed one a little later
                time.sleep(0.05)
            assert connections() == 1
