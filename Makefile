# Every target creates the virtual environment it needs: with uv if it is on PATH, otherwise with venv and pip.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv 2>/dev/null)
JOBS ?= 4

.DEFAULT_GOAL := help
.PHONY: help demo run test check lint types imports soak bench lock wheel sdist wheel-check clean

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

check: lint types imports wheel-check test ## format, lint, types, imports, the wheel and the tests: what CI runs

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

# Built by setuptools itself, which the lock files have: with neither pip nor uv nor the network. What an earlier build
# left behind would be packed again.
wheel: $(VENV)/.dev ## the wheel, in dist/
	rm -rf build dist/*.whl *.egg-info
	$(BIN)/python -c "from setuptools.build_meta import build_wheel; build_wheel('dist')" >/dev/null
	@ls dist/*.whl

sdist: $(VENV)/.dev ## the source archive, in dist/
	rm -rf dist/*.tar.gz *.egg-info
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('dist')" >/dev/null
	@ls dist/*.tar.gz

# The libraries come from $(VENV) by way of a .pth file. A .pth file there, such as that of the project installed in
# place, does not count in the new environment.
wheel-check: wheel ## install the wheel in an empty environment and start the server from there
	$(BIN)/python -m venv --without-pip build/check
ifdef UV
	$(UV) pip install -q --python build/check/bin/python --no-deps --no-index dist/*.whl
else
	$(BIN)/python -m pip --disable-pip-version-check --python build/check/bin/python install -q --no-deps --no-index dist/*.whl
endif
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	    >"$$(build/check/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/libraries.pth"
	build/check/bin/python -P tests/installed.py

clean: ## remove the environment and everything built
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
