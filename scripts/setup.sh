#!/bin/sh
# Makes .venv with the pinned packages and the tidemark command. Does nothing when both are there already.
# PYTHON chooses the interpreter, JAVA_HOME the Java.
set -eu
cd "$(dirname "$0")/.."

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

suits() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if suits "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

java=${JAVA_HOME:+$JAVA_HOME/bin/}java
java_version=$("$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p') || java_version=
if [ "${java_version:-0}" -lt 17 ]; then
    fail "Java 17 or newer is needed, found: ${java_version:-none} ($java)." \
        "On Debian or Ubuntu: apt-get install openjdk-17-jre-headless; elsewhere any JDK from 17 on." \
        "Where several are installed set JAVA_HOME."
fi

key=$(cat requirements-dev.lock pyproject.toml scripts/setup.sh | cksum)
stamp=.venv/.installed
if [ -x .venv/bin/tidemark ] && suits .venv/bin/python && [ "$(cat "$stamp" 2>/dev/null)" = "$key" ]; then
    exit 0
fi

if ! suits .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    [ -n "$python" ] || fail "Python 3.10 to 3.13 is needed, none found among: ${PYTHON:-python3, python3.10 to 3.13}." \
        "On Debian or Ubuntu: apt-get install python3 python3-venv; or name one: make setup PYTHON=/path/to/python3"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python lacks the modules venv and ensurepip." \
        "On Debian or Ubuntu: apt-get install python3-venv"
    "$python" -m venv --clear .venv
fi
rm -f "$stamp"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
echo "$key" >"$stamp"
