"""The example job files are valid, and the reference is what the models say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scripts.job_file_reference import EXAMPLES, REFERENCE, SECTIONS, main, reference
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


def test_every_key_is_described() -> None:
    for _, section in SECTIONS:
        assert (section.__doc__ or "").strip()
        for key, field in section.model_fields.items():
            assert field.description, f"{section.__name__}.{key}"
