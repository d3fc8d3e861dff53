# `make` alone says what there is. Each environment is made once and again when packaging data change.

PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
BIN    := $(VENV)/bin
PIP     = -m pip --disable-pip-version-check
PYTEST_ARGS ?=

PACKAGING := pyproject.toml setup.py
SOURCES   := $(shell find launcher -name '*.py' 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv dev demo test check contract-docker lint types bench install uninstall clean python-ok

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.demo  ## an environment with launch and TensorFlow in .venv

dev: $(VENV)/.dev  ## the same, with what the tests need

demo: $(VENV)/.demo  ## train MNIST with 2 ps and 2 workers on this machine
	$(BIN)/python examples/mnist_dist/data.py
	$(BIN)/launch --ps 2 --workers 2 --flags examples/mnist_dist/mnist_dist.py
	@echo "next: . $(VENV)/bin/activate; launch --help"

test: lint types  ## ruff, mypy and all tests
	@command -v tmux >/dev/null || { echo "make: the tests need tmux: apt-get install tmux" >&2; exit 1; }
	$(BIN)/python -m $(if $(PYTEST_ARGS),pytest $(PYTEST_ARGS),tests)

check: test

contract-docker: $(VENV)/.dev  ## the contract of agents, in containers: some minutes
	LAUNCH_TEST_CONTRACT=docker $(BIN)/python -m pytest tests/contract

lint: $(VENV)/.dev  ## ruff
	$(BIN)/ruff check .

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

bench: $(BENCH)/.installed  ## measure side by side with honcho, mpirun and torchrun
	$(BENCH)/bin/python -m bench.run $(BENCH_ARGS)

install: python-ok  ## install launch for the Python of PYTHON=
	$(PYTHON) $(PIP) --quiet install .

uninstall:  ## the opposite
	$(PYTHON) $(PIP) --quiet uninstall -y tf-launcher

clean:  ## remove environments, caches and what building leaves
	rm -rf $(VENV) $(BENCH) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python-ok:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make: no $(PYTHON) here: install Python 3.10 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("make: Python %d.%d is too old, 3.10 or \
	newer is needed: make PYTHON=python3.11" % sys.version_info[:2])'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) can't make virtual environments: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/bin/python $(BENCH)/bin/python: | python-ok
	$(PYTHON) -m venv $(@D)/..

# Editable: what is tested and shown is the source as it is now.
$(VENV)/.demo: $(PACKAGING) | $(VENV)/bin/python
	@echo "installing launch and TensorFlow into $(VENV) (once; some minutes, the last half of one in silence)"
	$(BIN)/python $(PIP) install --editable '.[tensorflow]'
	@touch $@

$(VENV)/.dev: $(PACKAGING) | $(VENV)/bin/python
	@echo "installing launch, TensorFlow and the tools of the tests into $(VENV) (once; some minutes, the last half of one in silence)"
	$(BIN)/python $(PIP) install --editable '.[tensorflow,dev]'
	@touch $@ $(VENV)/.demo

# Not editable: what is measured is what a user installs.
$(BENCH)/.installed: $(PACKAGING) $(SOURCES) | $(BENCH)/bin/python
	rm -rf build
	$(BENCH)/bin/python $(PIP) --quiet install .
	@touch $@
