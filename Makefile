# The doors of the repository. Each does its own set-up, once, in .venv:
#
#   make test       the fast tests
#   make demo       a real training run, killed twice, proved identical
#   make check      ruff, mypy, import-linter
#   make gpu-check  the tests that need a real card; the torch of this environment must be built for it
#
# PYTHON=python3.12 chooses the interpreter.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup check test demo gpu-check clean

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
		"error: Perdure needs Python 3.11 or newer, $(PYTHON) is %d.%d\nhint: make PYTHON=python3.12" % v[:2])'
	@echo "Setting up $(VENV): once, it takes a few minutes ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input \
		--constraint constraints.txt torch --editable '.[dev]'
	@touch $@

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

gpu-check: $(READY)
	$(BIN)/perdure doctor --require gpu
	$(BIN)/python -m pytest -m gpu -rs

demo: $(READY)
	@$(BIN)/perdure demo

clean:
	rm -rf $(VENV) build dist demo-out runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
