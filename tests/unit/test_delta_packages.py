"""Delta's build for each version of Spark."""

from pathlib import Path

import pytest

from tidemark.sinks.delta.settings import PACKAGES, delta_package, delta_settings, how_to_have_delta
from tidemark.state.errors import SinkError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("version", PACKAGES)
def test_each_supported_spark_has_a_build(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.version.__version__", f"{version}.1")
    assert delta_settings({}, submitted=False)["spark.jars.packages"] == PACKAGES[version]
    assert PACKAGES[version] in how_to_have_delta()


def test_a_spark_without_a_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.version.__version__", "4.99.0")
    with pytest.raises(SinkError, match=r"no build of Delta Lake for Spark 4\.99\.0") as caught:
        delta_package()
    assert caught.value.remedy == how_to_have_delta()
    assert "spark.jars.packages" not in delta_settings({"spark.jars": "/x.jar"}, submitted=False)


def test_the_page_names_the_builds_and_what_is_left_out() -> None:
    page = (ROOT / "docs" / "delta.md").read_text()
    assert [version for version, package in PACKAGES.items() if f"| `{package}` |" not in page] == []
    excluded = delta_settings({}, submitted=False)["spark.jars.excludes"]
    command = page[page.index("--exclude-packages") :].split(" \\\n  …")[0]
    assert command.replace("'\\\n'", "").split("'")[1] == excluded
