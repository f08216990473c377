# Every target works on a fresh machine that has Python 3.11 or newer with pip. Tools come from .venv only.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip -qq --disable-pip-version-check --no-input

export TF_CPP_MIN_LOG_LEVEL ?= 2
export PIP_ROOT_USER_ACTION := ignore

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all fast lint format bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv and install graphfreeze with its tools

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "graphfreeze needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -e '.[dev]'
	@touch $@

demo: setup ## the main job on a real model and real data, from the freeze to the plain model
	$(BIN)/python examples/digits_demo.py

# worksteal leaves the tests of a file together, so that what they share is made once, and no worker idle at the end.
test: lint ## everything that CI checks: format, lint, types, layers, tests
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

test-all: lint ## the same with the full product of cases instead of a selection
	GRAPHFREEZE_FULL=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

fast: setup ## only the tests that do not start TensorFlow
	$(BIN)/python -m pytest -q -m "not tf"

lint: setup ## format, lint, types and layers, without the tests
	$(BIN)/ruff format --check --quiet . || { echo "Some files are not formatted: make format" >&2; exit 1; }
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/lint-imports --no-logo

format: setup ## format all files and repair what the linter can repair
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

bench: setup ## measure the cost of a rewrite and of a training step
	$(BIN)/python benchmarks/rewrite.py
	$(BIN)/python benchmarks/train_step.py

clean: ## remove .venv and all caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
