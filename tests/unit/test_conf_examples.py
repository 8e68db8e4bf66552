"""The example job files are valid, and the reference is what the models say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from scripts.job_file_reference import EXAMPLES, REFERENCE, SCHEMA, SECTIONS, main, reference, schema_text
from tidemark.conf.json_schema import json_schema
from tidemark.conf.load import load_job_file
from tidemark.conf.redaction import forget_secrets

AIRFLOW = Path(__file__).parents[2] / "examples" / "airflow" / "dags" / "shop.yaml"
ENVIRON = {
    "SHOP_PASSWORD": "a@b/c",
    "WAREHOUSE_PASSWORD": "w%/:",
    "SHOP_LOGIN": "cdc:a@b",
    "COPY_LOGIN": "copy:b@c",
    "SHOP_HOST": "shop-db",
    "COPY_HOST": "copy-db",
}


@pytest.fixture(autouse=True)
def _secrets_of_one_test_only() -> Iterator[None]:
    yield
    forget_secrets()


@pytest.mark.parametrize("path", [*sorted(EXAMPLES.glob("*.yaml")), AIRFLOW], ids=lambda path: path.stem)
def test_every_example_is_a_valid_job_file(path: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from a file\n", encoding="utf-8")
    copy = tmp_path / path.name
    copy.write_text(
        path.read_text(encoding="utf-8").replace("/run/secrets/erp-password", str(secret)), encoding="utf-8"
    )
    job = load_job_file(copy, (), ENVIRON)
    assert job.source.url.password.get_secret_value() in ("a@b/c", "a@b", "from a file")
    assert [text for text in job.warnings() if ".tls: without it" not in text] == []


def test_the_examples_cover_all_sinks_and_sources() -> None:
    assert len(list(EXAMPLES.glob("*.yaml"))) == 5
    written = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in EXAMPLES.glob("*.yaml")]
    assert {job["sink"]["type"] for job in written} == {"mirror", "files", "delta", "console"}
    assert {job["source"]["url"].partition("://")[0] for job in written} == {"mysql", "mariadb", "postgresql"}


def test_the_reference_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == reference(), "run: python -m scripts.job_file_reference"
    assert main(["--check"]) == 0


def test_the_schema_is_up_to_date_and_takes_the_examples(tmp_path: Path) -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run: python -m scripts.job_file_reference"
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    for path in (*EXAMPLES.glob("*.yaml"), AIRFLOW):
        assert list(validator.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))) == []
    job = yaml.safe_load((EXAMPLES / "mirror-to-postgresql.yaml").read_text(encoding="utf-8"))
    as_written: list[dict[str, Any]] = [
        {"snapshot": {"parallelism": "${PARALLELISM:-4}"}, "log": {"max_batch_bytes": 1_000_000}},
        {"snapshot": None, "spark": None, "mode": "${MODE}"},
        {"log": {"driver_bytes": 0}, "metrics": {"port": 9108}},
    ]
    for change in as_written:
        assert list(validator.iter_errors(job | change)) == [], change
    wrong: list[dict[str, Any]] = [
        {"sync": {}},
        {"mode": "partial"},
        {"snapshot": {"parallelism": 0}},
        {"snapshot": {"paralelism": 1}},
        {"sink": {"type": "files"}},
        {"sink": job["sink"] | {"path": "./x"}},
    ]
    for change in wrong:
        assert list(validator.iter_errors(job | change)), change


def test_the_schema_shows_defaults_as_they_are_written() -> None:
    schema = json_schema()
    log, snapshot = (schema["$defs"][name]["properties"] for name in ("Log", "Snapshot"))
    assert (log["max_batch_bytes"]["default"], snapshot["parallelism"]["default"]) == ("64MiB", 4)
    assert schema["properties"]["trigger"]["default"] == "once"
    assert schema["$defs"]["MirrorSink"]["properties"]["table"]["default"] == "{schema}_{table}"


def test_every_key_is_described() -> None:
    for _, section in SECTIONS:
        assert (section.__doc__ or "").strip()
        for key, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{key}"
