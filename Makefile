# Every target makes the virtual environment it needs: with uv where it is on PATH, else with venv and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help demo run test check lint types imports soak bench lock wheel wheel-check clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
ifdef UV
	$(UV) venv -q --python $(PYTHON) $(VENV)
else
	$(PYTHON) -m venv $(VENV)
endif

# Everything installed is pinned, with hashes; the project itself is installed last, in place.
$(VENV)/.runtime: requirements.txt setup.cfg pyproject.toml | $(BIN)/python
ifdef UV
	$(UV) pip install -q --python $(BIN)/python --require-hashes -r requirements.txt
	$(UV) pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
ifdef UV
	$(UV) pip install -q --python $(BIN)/python --require-hashes -r requirements-dev.txt
else
	$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.txt
endif
	@touch $@

demo: $(VENV)/.runtime ## a whole research on a simulated model: no key, no network
	@$(BIN)/gligabao demo $(ARGS)

run: $(VENV)/.runtime ## the server (settings: gligabao.toml and GLIGABAO_*)
	@$(BIN)/gligabao serve $(ARGS)

test: $(VENV)/.dev ## the tests, on SQLite and (where it can run) Postgres
	$(BIN)/pytest -q -n $(JOBS) $(ARGS)

check: lint types imports test ## format, lint, types, imports and tests: what CI runs

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

soak: $(VENV)/.dev ## long fault tests
	$(BIN)/pytest -q -m soak tests $(ARGS)

bench: $(VENV)/.dev ## benchmarks, as ratios
	$(BIN)/python -m benchmarks $(ARGS)

lock: ## write the lock files anew from setup.cfg (needs uv)
	$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --output-file requirements.txt setup.cfg requirements.in
	$(UV) pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	    --no-emit-index-url --extra dev --output-file requirements-dev.txt setup.cfg requirements.in -c requirements.txt

wheel: $(VENV)/.dev ## the wheel, in dist/
	rm -rf build dist
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist . 2>/dev/null || \
	    $(UV) build -q --wheel --no-build-isolation --python $(BIN)/python -o dist .
	@ls dist/*.whl

wheel-check: wheel ## install the wheel in an empty environment and read its data from there
	$(PYTHON) -m venv build/check
	build/check/bin/python -m pip install -q --disable-pip-version-check --no-deps dist/*.whl
	cd build/check && bin/python -c "from gligabao.resources import data_dir as d; \
	    assert (d('sql') / 'runs.sql').is_file() and (d('prompts') / 'research.md').is_file()"

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
