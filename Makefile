# Every target works on a fresh machine with Python 3.11: the environment is made in .venv, under constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

# `make test` is what one runs while working; `make test-slow` has the rest: compiled masks, many seeds, whole runs.
.PHONY: install demo test test-slow fuzz lint bench clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(INSTALLED)

demo: install
	$(BIN)/python -m experiments.demo

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# Attention with every mask against a plain formula, in about forty minutes on two cores.
fuzz: install
	$(BIN)/python -m tests.fuzz --cases 50000 --seed 0
	$(BIN)/python -m tests.fuzz --cases 3000 --seed 0 --mask frontier

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: install
	$(BIN)/topomask bench

clean:
	rm -rf $(VENV) demo_output bench_output
