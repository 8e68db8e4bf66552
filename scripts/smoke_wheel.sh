#!/bin/sh
# Installs a wheel into a fresh environment with the packages of requirements.lock, and runs the command there.
# smoke_wheel.sh WHEEL; PYTHON chooses the interpreter.
set -eu
unset PYTHONPATH # what it names would count as installed
wheel=$(realpath "$1")
root=$(realpath "$(dirname "$0")/..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"${PYTHON:-python3}" -m venv "$folder/environment"
cd "$folder" # so that nothing is imported from the repository
pip="environment/bin/python -m pip install --quiet --disable-pip-version-check"
$pip --requirement "$root/requirements.lock"
$pip --no-deps "$wheel"
environment/bin/python -m pip --quiet --disable-pip-version-check check
version=$(environment/bin/tidemark --version | sed -n 's/^tidemark \([^ ]*\) .*/\1/p')
case $(basename "$wheel") in
    "tidemark_cdc-$version-"*) ;;
    *)
        echo "$(basename "$wheel") has version $version" >&2
        exit 1
        ;;
esac
SHOP_PASSWORD=secret environment/bin/tidemark validate "$root/conf/examples/changes-to-console.yaml"
echo "$(basename "$wheel") works in a fresh environment."
