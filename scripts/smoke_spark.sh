#!/bin/sh
# Runs three jobs with a version of Spark, two if Delta has no build for it, in a fresh environment with the wheel and the other packages of requirements.lock. The
# version may be one that pyproject.toml does not admit yet.
# smoke_spark.sh VERSION WHEEL, such as smoke_spark.sh 3.5 dist/tidemark_cdc-0.1.0-py3-none-any.whl; PYTHON chooses the interpreter.
set -eu
version=$1
wheel=$(realpath "$2")
root=$(realpath "$(dirname "$0")/..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

unset PYTHONPATH # what it names would count as installed
"${PYTHON:-python3}" -m venv "$folder/environment"
python="$folder/environment/bin/python"
grep -vE '^(pyspark|py4j)==' "$root/requirements.lock" > "$folder/requirements.txt"
$python -m pip install --quiet --disable-pip-version-check --requirement "$folder/requirements.txt" "pyspark~=$version.0"
$python -m pip install --quiet --disable-pip-version-check --no-deps "$wheel"
cd "$root"
TIDEMARK_TEST_SERVERS=${TIDEMARK_TEST_SERVERS:-packages} $python -m scripts.smoke_spark "$version" # Docker would need more packages
