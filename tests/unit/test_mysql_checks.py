"""Preflight's findings on settings and tables, without a server."""

from dataclasses import replace
from typing import Any

import pytest

from tidemark.readers.findings import Finding, raise_refusals, refusal, warning
from tidemark.readers.mysql.connect import Flavour
from tidemark.readers.mysql.schema.catalog import schema_of
from tidemark.readers.mysql.schema.server_checks import check_settings, grants_log
from tidemark.readers.mysql.schema.table_checks import (
    check_cascades,
    check_key,
    check_logged,
    check_storage,
)
from tidemark.readers.mysql.schema.table_effects import grants_trigger
from tidemark.readers.mysql.schema.table_facts import ColumnFacts, ForeignKey, Index, IndexColumn, TableFacts
from tidemark.readers.mysql.server import LogStatus, ServerIdentity, ServerInfo, is_galera, own_numbers
from tidemark.readers.schema_checks import TableSettings, check_settings_of_tables
from tidemark.state.errors import SourceNotUsableError
from tidemark.state.table import TableId

T = TableId("shop", "orders")
GOOD = ServerInfo(
    flavour="mysql",
    version=(9, 7, 4),
    version_text="9.7.4",
    identity=ServerIdentity("mysql", "9d1f0000-0000-0000-0000-000000000001"),
    server_id=1,
    log_bin=True,
    binlog_format="ROW",
    binlog_row_image="FULL",
    binlog_row_metadata="FULL",
    binlog_row_value_options="",
    binlog_expire_seconds=2_592_000,
    gtid_mode="ON",
    log_replica_updates=True,
    is_replica=False,
    read_only=False,
    galera=False,
    own_numbers="",
    is_group_member=False,
    native_foreign_keys=False,
    lower_case_table_names=0,
    max_allowed_packet_bytes=64 << 20,
)


def facts(*, engine: str = "InnoDB", kind: str = "BASE TABLE", rule: str = "RESTRICT", key: str = "int") -> TableFacts:
    return TableFacts(
        T,
        kind,
        engine,
        (ColumnFacts("id", key, None, None, False, False),),
        (Index("PRIMARY", True, "BTREE", (IndexColumn("id", False, None),)),),
        (ForeignKey("f", "RESTRICT", rule),),
        0,
    )


def test_a_good_server_has_no_findings() -> None:
    assert check_settings(GOOD) == []


@pytest.mark.pitfall(31, 32, 34, 53)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"log_bin": False}, "log_bin"),
        ({"binlog_format": "MIXED"}, "binlog_format = 'ROW'"),
        ({"binlog_row_image": "MINIMAL"}, "binlog_row_image = 'FULL'"),
        ({"binlog_row_image": "NOBLOB"}, "binlog_row_image = 'FULL'"),
        ({"binlog_row_metadata": "MINIMAL"}, "binlog_row_metadata = 'FULL'"),
        ({"binlog_row_metadata": "NO_LOG"}, "binlog_row_metadata = 'FULL'"),
        ({"binlog_row_value_options": "PARTIAL_JSON"}, "binlog_row_value_options = ''"),
        ({"is_replica": True, "log_replica_updates": False}, "log_replica_updates=ON"),
        ({"flavour": "mariadb", "is_replica": True, "log_replica_updates": False}, "log_slave_updates=ON"),
        ({"lower_case_table_names": 2}, "lower_case_table_names 0 or 1"),
    ],
)
def test_a_setting_that_loses_changes_is_refused_with_what_to_set(change: dict[str, Any], named: str) -> None:
    (found,) = check_settings(replace(GOOD, **change))
    assert found.severity == "refuse"
    assert named in found.remedy


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gtid_mode": "ON_PERMISSIVE"}, "gtid_mode"),
        ({"binlog_expire_seconds": 3600}, "3600 seconds"),
        ({"max_allowed_packet_bytes": 1 << 20}, "max_allowed_packet"),
        ({"galera": True}, "Galera"),
    ],
)
def test_what_may_go_wrong_later_is_a_warning(change: dict[str, Any], named: str) -> None:
    (found,) = check_settings(replace(GOOD, **change))
    assert found.severity == "warn"
    assert named in found.message


@pytest.mark.parametrize(
    ("flavour", "values", "named"),
    [
        ("mariadb", {"wsrep_gtid_mode": "ON", "wsrep_gtid_domain_id": "40", "gtid_domain_id": "0"}, ""),
        (
            "mariadb",
            {"wsrep_gtid_mode": "ON", "wsrep_gtid_domain_id": "0", "gtid_domain_id": "0"},
            "wsrep_gtid_domain_id",
        ),
        ("mariadb", {"wsrep_gtid_mode": "OFF"}, "wsrep_gtid_mode is OFF"),
        ("mysql", {}, ""),  # Percona XtraDB Cluster
    ],
)
def test_nodes_that_number_transactions_themselves_are_known(
    flavour: Flavour, values: dict[str, str], named: str
) -> None:
    found = own_numbers(flavour, values)
    assert bool(found) == bool(named)
    assert named in found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, False),
        ({"wsrep_on": "OFF", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, False),
        ({"wsrep_on": "ON", "wsrep_provider": "none"}, False),
        ({"wsrep_on": "ON", "wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, True),
    ],
)
def test_a_server_without_a_provider_is_no_node_of_galera(values: dict[str, str], expected: bool) -> None:
    assert is_galera(values) == expected


def test_a_log_that_is_never_purged_and_a_lone_server_without_replica_updates_are_fine() -> None:
    assert check_settings(replace(GOOD, binlog_expire_seconds=0, log_replica_updates=False)) == []


@pytest.mark.pitfall(39)
def test_cascades_are_refused_where_the_server_does_not_log_them() -> None:
    for server in (replace(GOOD, native_foreign_keys=True), replace(GOOD, native_foreign_keys=None)):
        for rule in ("CASCADE", "SET NULL", "SET DEFAULT"):
            (found,) = check_cascades(facts(rule=rule), server)
            assert found.severity == "refuse"
        assert check_cascades(facts(rule="NO ACTION"), server) == []
    assert check_cascades(facts(rule="CASCADE"), GOOD) == []


@pytest.mark.pitfall(86)
@pytest.mark.parametrize("engine", ["MyISAM", "Aria", "MEMORY", "CSV", "FEDERATED", "BLACKHOLE", ""])
def test_engines_without_transactions_are_refused_for_snapshots(engine: str) -> None:
    (found,) = check_storage(facts(engine=engine), snapshots=True)
    assert found.severity == "refuse"
    assert "ENGINE=InnoDB" in found.remedy
    (found,) = check_storage(facts(engine=engine), snapshots=False)
    assert found.severity == "warn"


def test_system_versioned_tables_are_refused() -> None:
    (found,) = check_storage(facts(kind="SYSTEM VERSIONED"), snapshots=False)
    assert "system-versioned" in found.message


@pytest.mark.pitfall(53)
def test_databases_that_the_log_leaves_out_are_refused() -> None:
    assert check_logged(facts(), LogStatus("b.1", 4, (), ())) == []
    assert check_logged(facts(), LogStatus("b.1", 4, ("shop",), ("other",))) == []
    assert check_logged(facts(), LogStatus("b.1", 4, ("other",), ()))[0].severity == "refuse"
    assert check_logged(facts(), LogStatus("b.1", 4, (), ("shop",)))[0].severity == "refuse"


def test_inexact_key_columns_are_refused() -> None:
    table = facts(key="double")
    (found,) = check_key(table, schema_of(table))
    assert (found.severity, found.column) == ("refuse", "id")


def test_settings_for_tables_that_are_not_copied_are_refused() -> None:
    settings = TableSettings(exclude_columns={TableId("shop", "Orders"): frozenset({"ssn"})}, keys={T: ("a",)})
    (found,) = check_settings_of_tables({T}, settings)
    assert found.message.startswith("source.columns names shop.Orders")


@pytest.mark.pitfall(111)
@pytest.mark.parametrize(
    ("grant", "shown"),
    [
        ("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION", True),
        ("GRANT SELECT, TRIGGER ON *.* TO `cdc`@`%`", True),
        ("GRANT TRIGGER ON `shop`.* TO `cdc`@`%`", True),
        ("GRANT TRIGGER ON `shop`.`order_items` TO `cdc`@`%`", True),
        ("GRANT TRIGGER ON `shop`.`orders` TO `cdc`@`%`", False),
        ("GRANT TRIGGER ON `sh%`.* TO `cdc`@`%`", False),
        ("GRANT SELECT ON *.* TO `cdc`@`%`", False),
        ("GRANT `role` TO `cdc`@`%`", False),
    ],
)
def test_grants_that_show_triggers(grant: str, shown: bool) -> None:
    assert grants_trigger(grant, TableId("shop", "order_items")) == shown


@pytest.mark.parametrize(
    ("grant", "may"),
    [
        ("GRANT REPLICATION SLAVE, BINLOG MONITOR ON *.* TO `cdc`@`%` IDENTIFIED BY PASSWORD '*B6'", True),
        ("GRANT ALL PRIVILEGES ON *.* TO `root`@`localhost` WITH GRANT OPTION", True),
        ("GRANT BINLOG MONITOR ON *.* TO `cdc`@`%`", False),
        ("GRANT SELECT, REPLICATION SLAVE ON `shop`.* TO `cdc`@`%`", False),
        ("GRANT `role` TO `cdc`@`%`", False),
        ("GRANT USAGE ON *.* TO `cdc`@`%`", False),
    ],
)
def test_mariadb_grants_that_allow_reading_the_log(grant: str, may: bool) -> None:
    assert grants_log(grant) is may


def test_refusals_are_raised_together_and_warnings_are_not() -> None:
    raise_refusals([warning("w", "x")])
    with pytest.raises(SourceNotUsableError) as one:
        raise_refusals([warning("w", "x"), refusal("a is off.", "Set a.")])
    assert (one.value.message, one.value.remedy) == ("a is off.", "Set a.")
    with pytest.raises(SourceNotUsableError) as many:
        raise_refusals([refusal("a.", "Set x."), refusal("b.", "Set y."), refusal("c.", "Set x.")])
    assert many.value.message == "The job can't start: 3 problems. (1) a. (2) b. (3) c."
    assert many.value.remedy == "(1, 3) Set x. (2) Set y."


def test_a_long_list_of_refusals_is_cut() -> None:
    findings = [Finding("refuse", f"m{i}.", f"r{i}.") for i in range(30)]
    with pytest.raises(SourceNotUsableError, match=r"can't start: 30 problems.*And 10 more"):
        raise_refusals(findings)
