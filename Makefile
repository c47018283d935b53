# `make demo` and `make test` work on any machine with python3.11 and a package index.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
SOURCES := src tests benchmarks docs .ci

.PHONY: demo test lint types docs bench clean

demo: $(VENV)/installed
	$(BIN)/domainwise demo

test: $(VENV)/installed-test
	# One thread per process, so that they do not compete. One process more than CPUs, because tests that start
	# processes spend much of their time waiting.
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$($(BIN)/python -c "import os; print(1 + os.cpu_count())") --dist loadfile --no-loadscope-reorder

lint: $(VENV)/installed-test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/installed-test
	$(BIN)/mypy

docs: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(VENV)/installed
	$(BIN)/python benchmarks/step_cost.py

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	# Our attacks are compared with those of torchattacks, whose pinned requests of 2021 would replace everyone's.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'torchattacks>=3.5.1'
	touch $@ $(VENV)/installed
