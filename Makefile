# `make demo` and `make test` work on any machine with python3.11 and a package index.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SOURCES := src tests benchmarks docs .ci
# One thread per process, so that they do not compete. One process more than CPUs, because tests that start processes
# spend much of their time waiting.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $$($(BIN)/python -c "import os; print(1 + os.cpu_count())") \
	--dist worksteal

.PHONY: demo test test-slow test-times lint types docs bench clean

demo: $(VENV)/installed
	$(BIN)/domainwise demo

test: $(VENV)/installed-test
	$(PYTEST)

test-slow: $(VENV)/installed-test
	$(PYTEST) -m slow

test-times: $(VENV)/installed-test
	PYTHONPATH=benchmarks $(PYTEST) -p test_times --times benchmarks/test_times.md

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
	$(PIP) install --quiet --editable .
	touch $@

$(VENV)/installed-test: pyproject.toml | $(BIN)/python
	# The pip of many systems does not know dependency groups.
	$(PIP) install --quiet 'pip>=25.1'
	$(PIP) install --quiet --editable '.[all]' --group test
	# Our attacks are compared with those of torchattacks, whose pinned requests of 2021 would replace everyone's.
	$(PIP) install --quiet --no-deps 'torchattacks>=3.5.1'
	touch $@ $(VENV)/installed
