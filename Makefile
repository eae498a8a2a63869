# Everything runs in .venv, which is made at first use and brought up to date when
# pyproject.toml changes. `make TORCH_INDEX=URL ...` names an index of torch wheels, so that a
# machine without a GPU need not download the CUDA build.

PYTHON ?= python3
TORCH := torch==2.13.0
VENV := .venv
# How many tests run at once.
JOBS ?= 2
BIN := $(VENV)/bin
# With -P the repository root stays off sys.path: a folder here has the name of a distribution.
RUN := $(BIN)/python -P -m
PIP := $(RUN) pip install -qq --disable-pip-version-check
INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: help demo test test-clients test-oracles lint types install clean

help:
	@echo "make demo   install, start the whole stack, ask a question, replay an agent run"
	@echo "make test   install what tests need and run them, JOBS=2 at a time"
	@echo "make test-clients   real agents (npm) through the gateway, in an environment of their own"
	@echo "make test-oracles   read replies as SGLang and vLLM do, with parsers it fetches (400 MB)"
	@echo "make lint   ruff: rules and format      make types   mypy, strict"
	@echo "make clean  remove .venv and what the tools left"

demo: $(VENV)/installed
	$(RUN) alipes.cli.demo

test: $(VENV)/installed-test
	$(RUN) pytest -n $(JOBS) --dist worksteal

test-clients: $(VENV)/installed-test
	$(RUN) pytest -m clients -rs tests/clients

test-oracles: $(VENV)/installed-test
	$(RUN) pytest -m oracle -rs tests/oracles

lint: $(VENV)/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/installed-test
	$(BIN)/mypy

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Alipes needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (some minutes the first time) ..."
	@$(PIP) $(INDEX) $(TORCH)
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@echo "Installing what lint, types and tests need ..."
	@$(PIP) -e '.[test]'
	@touch $@

clean:
	rm -rf $(VENV) .demo .mypy_cache .pytest_cache .ruff_cache .hypothesis
