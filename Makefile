# Everything runs in a virtual environment of its own; `make demo` is the whole story in some minutes.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
BIN    := $(VENV)/bin

.PHONY: help setup demo lint types test test-all bench break-it clean

help: ## what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.dev ## everything for development

$(VENV)/.made:
	$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "turngym needs Python 3.11 or newer; say make PYTHON=python3.11"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q "$(TORCH)"
	touch $@

$(VENV)/.train: $(VENV)/.made pyproject.toml
	$(BIN)/pip install -q -e ".[train]"
	touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	$(BIN)/pip install -q -e ".[dev]"
	touch $@ $(VENV)/.train

demo: $(VENV)/.train ## train the default policy on Corridor and show the curve (minutes, no GPU)
	rm -rf runs/demo
	OMP_NUM_THREADS=1 $(BIN)/turngym train demo --out runs/demo  # sums in one order: the same numbers every time

lint: $(VENV)/.dev ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

test: lint types ## lint, types and every test that is not slow
	$(BIN)/pytest -m "not slow"

test-all: lint types ## the slow ones, too
	$(BIN)/pytest

bench: $(VENV)/.dev ## every benchmark; tables here, figures in runs/bench
	mkdir -p runs/bench
	for script in benchmarks/[a-z]*.py; do \
	  $(BIN)/python $$script --json runs/bench/$$(basename $$script .py).json || exit 1; \
	done

break-it: $(VENV)/.dev ## break signs, masks, denominators and offsets one at a time; the tests must notice each
	$(BIN)/python benchmarks/break_it.py

clean: ## remove what was made, not what was written
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
