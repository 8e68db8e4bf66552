# `make` or `make help` lists the targets. Every target does the setup that it needs.
SHELL := /bin/sh
.DEFAULT_GOAL := help

PY := .venv/bin/python
# More than two cores: tests wait for servers a third of the time.
WORKERS ?= 3
N ?= 20
MOST = not benchmark and not airflow
MANY_EXAMPLES = tests/property/test_model.py tests/property/test_sink_model.py tests/property/test_key_rereads.py
PYTEST = .venv/bin/pytest -n $(WORKERS) --dist worksteal --durations 25
ROWS ?= 5000000
DIST ?= dist
SPARK ?= 3.5 4.3
LOCK = --universal --python-version 3.10 --no-annotate --no-header --quiet

# Where this is set, each process of a test run would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup servers check test test-fast test-mysql test-postgres test-sinks test-airflow smoke-spark chaos pitfalls demo bench spec dist wheel lock clean distclean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "  make %-13s %s\n", $$1, $$2 }'

setup: ## .venv with the pinned packages and .venv/bin/tidemark
	@sh scripts/setup.sh

servers: setup ## download the database servers that tests and demo use
	@$(PY) -m devtools.servers fetch

check: setup ## format, lint, types, import direction
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports

test: setup servers ## all tests except the long chaos tests and Airflow's (WORKERS=3, EVERY_SERVER=1)
	TIDEMARK_TEST_EVERY_SERVER=$(EVERY_SERVER) $(PYTEST) -m "$(MOST)"

test-fast: setup ## tests that need no server and no Spark
	$(PYTEST) -m "$(MOST) and not integration and not chaos"

test-mysql: setup servers ## tests of MySQL's and MariaDB's log, snapshot, catalog
	$(PYTEST) -m "$(MOST)" $(wildcard tests/*/test_*mysql*.py)

test-postgres: setup servers ## tests of PostgreSQL's log, snapshot, catalog
	$(PYTEST) -m "$(MOST)" $(wildcard tests/*/test_*postgres*.py) tests/property/test_wal_snapshot.py

test-sinks: setup servers ## tests of the sinks: files, mirrors, Delta, console
	$(PYTEST) -m "$(MOST)" $(sort $(wildcard tests/*/test_*sink*.py tests/*/test_*delta*.py tests/contract/test_*.py))

test-airflow: setup servers .venv-airflow/.installed ## the DAGs of examples/airflow in a real Airflow
	.venv/bin/pytest -m airflow tests/airflow

smoke-spark: wheel servers ## some jobs with the oldest and the newest Spark (SPARK="3.5 4.3")
	for version in $(SPARK); do PYTHON=$(PY) sh scripts/smoke_spark.sh $$version $(DIST)/tidemark_cdc-*.whl || exit 1; done

.venv-airflow/.installed: examples/airflow/requirements.lock
	$(PY) -m venv --clear .venv-airflow
	.venv-airflow/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

chaos: setup servers ## kills at random times, N rounds, and many examples of the models (N=20)
	TIDEMARK_CHAOS_ROUNDS=$(N) .venv/bin/pytest -m chaos --timeout 0 tests/chaos
	TIDEMARK_CHAOS_ROUNDS=$(N) .venv/bin/pytest --timeout 0 $(MANY_EXAMPLES)

pitfalls: setup ## list the tests of each known pitfall
	@$(PY) -m scripts.pitfalls

demo: setup servers ## copy a shop, kill and resume the job, follow changes, compare (SOURCE=mysql)
	@$(PY) -m scripts.demo

bench: setup servers ## speed and memory next to peers (ONLY="snapshot log", ROWS=5000000)
	@$(PY) -m benchmarks $(ONLY) --rows $(ROWS)

spec: setup ## TLC checks the specification in spec/ (SIZE=large: larger bounds)
	@$(PY) -m scripts.spec --size $(or $(SIZE),small)

dist: wheel ## dist/tidemark.zip for spark-submit --py-files, and the wheel, tested in a fresh environment
	PYTHON=$(PY) sh scripts/smoke_wheel.sh $(DIST)/tidemark_cdc-*.whl

wheel: setup # the files of dist, without the test
	rm -rf $(DIST)
	mkdir -p $(DIST)/source
	cp -RL pyproject.toml README.md LICENSE src $(DIST)/source
	$(PY) -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(DIST) $(abspath $(DIST))/source
	cp $(DIST)/tidemark_cdc-*.whl $(DIST)/tidemark.zip
	rm -rf $(DIST)/source

lock: ## both locks from pyproject.toml, keeping versions where possible (needs uv; UPGRADE=--upgrade)
	uv pip compile $(LOCK) $(UPGRADE) --extra dev --output-file requirements-dev.lock pyproject.toml
	uv pip compile $(LOCK) $(UPGRADE) --constraints requirements-dev.lock --output-file requirements.lock pyproject.toml

clean: ## remove the files that builds and tests leave behind
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and remove the environments too
	rm -rf .venv .venv-airflow
