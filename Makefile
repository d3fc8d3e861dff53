# `make` alone says what there is. Each environment is made once and again when packaging data change.

PYTHON ?= python3
VENV   := .venv
BENCH  := .venv-bench
RELEASE := .venv-release
BIN    := $(VENV)/bin
PIP     = -m pip --disable-pip-version-check
PYTEST_ARGS ?=
COVERED ?= tests
# Most tests wait for something, so more of them run side by side than this machine has cores. With many more,
# each of them gets slower, and so do all: six were the fastest on two cores.
SIDE_BY_SIDE := -p no:cacheprovider -n 6
# Set, it has each launch compile our modules again.
unexport PYTHONDONTWRITEBYTECODE
FAST := tests/unit tests/histories tests/local tests/e2e tests/test_layout.py tests/test_public.py
FAST_MARKS := not tensorflow and not slow and not tmux and not elsewhere
# What depends on the user who runs it.
BY_USER := tests/unit/files tests/unit/agent tests/unit/runs tests/unit/test_ssh.py tests/local/test_files.py \
	tests/local/test_defaults.py::test_the_file_beside_the_program_comes_first \
	$(addprefix tests/local/test_control.py::test_,the_tasks_of_a_run clients_that_misbehave tasks_start_again \
	    a_socket_that_is_not_the_launchers_is_not_asked) \
	$(addprefix tests/local/test_nothing_left.py::test_,kill_9_of_the_launcher agent_and_watchdog_killed_together \
	    the_next_command_kills_orphans a_task_that_stops_or_traces_its_agent)
# Kills at random moments, floods, and the matrix of trainings: make soak runs them.
LONG := test_floods.py test_kills.py test_kubernetes.py test_signals.py test_survival.py
# Tests whose examples are random: make test tries a quarter of them.
EXAMPLES := tests/histories/test_any_history.py $(addprefix tests/unit/,config feed files/test_walk.py output scheduler test_manifest.py \
	test_pods.py test_protocol.py)
# The tests that compare texts with snapshots.
SNAPSHOTS := $(subst __snapshots__/,,$(wildcard tests/*/__snapshots__/*.ambr tests/*/*/__snapshots__/*.ambr))
comma := ,

PACKAGING := pyproject.toml setup.py constraints.txt .ci/install.py
# What is installed, and what builds it: one release of each package.
PINNED    ?= PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
SOURCES   := $(shell find launcher -name '*.py' 2>/dev/null)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv dev demo test test-fast newest coverage soak lint types docs public promises snapshots picture forks as-user data collected bench man packages \
	oldest constraints wheel dist install uninstall clean python-ok

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.demo  ## an environment with launch and TensorFlow in .venv
	@echo "next: . $(VENV)/bin/activate; launch --help"

dev: $(VENV)/.dev  ## the same, with what the tests need

demo: $(VENV)/.demo  ## train MNIST with 2 ps and 2 workers on this machine
	@$(BIN)/python examples/mnist_dist/data.py >/dev/null
	@echo "this is: launch --ps 2 --workers 2 --flags examples/mnist_dist/mnist_dist.py"
	@$(BIN)/launch --ps 2 --workers 2 --flags examples/mnist_dist/mnist_dist.py
	@echo "next: . $(VENV)/bin/activate; launch --help"
	@echo "this run in a browser: $(BIN)/launch page latest"

test: packages oldest data  ## install what is missing; ruff, codespell, mypy, import-linter, the site and all tests
	$(MAKE) --no-print-directory --jobs=4 --output-sync=target collected lint types docs
	@echo "beside the others run the tests that fork, and some as an ordinary user; they write to $(VENV)/beside.log"
	@$(MAKE) --no-print-directory forks as-user >$(VENV)/beside.log 2>&1 & \
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not forks and not long" $(LONG:%=--ignore tests/soak/%) $(PYTEST_ARGS); \
	code=$$?; wait $$! || { cat $(VENV)/beside.log; code=1; }; exit $$code

test-fast: lint types  ## the tests without SSH, Docker and TensorFlow (two minutes)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "$(FAST_MARKS)" $(FAST) $(PYTEST_ARGS)

# Hosts may have it. Where it can't be had, a line says so.
oldest: $(VENV)/.dev
	@$(BIN)/python -m tests.pythons

# Tests that fork their process: pytest-xdist has threads.
forks: $(VENV)/.dev
	$(BIN)/python -m pytest -p no:cacheprovider -m forks tests/contract

# Root runs them as another user without rights, who has root's files: only numbers change.
as-user: $(VENV)/.dev
	@if [ "$$(id -u)" -eq 0 ]; then \
	    HOME=/nonexistent unshare --user --map-user=65534 --map-group=65534 \
	    $(BIN)/python -m pytest -p no:cacheprovider -m "$(FAST_MARKS)" $(BY_USER); fi

# Trainings read it, also in places without a network.
data: $(VENV)/.dev
	@$(BIN)/python examples/mnist_dist/data.py

# Compiles all test modules once (pytest rewrites them): else each process of the next run would.
collected: $(VENV)/.dev
	$(BIN)/python -m pytest -p no:cacheprovider --collect-only -qq -m forks

# Coverage swallows a Ctrl-C while Python starts, imports modules, delays the end of a process, and can't write as a
# user without rights.
UNMEASURED := $(addprefix tests/,local/test_ends.py::test_ctrl_c_before_anything_runs local/test_commands.py::test_a_launch_imports_nothing_slow \
	unit/test_threads.py docker/test_nothing_left.py::test_before_there_is_anything \
	api/test_cluster_failing.py::test_a_quiet_job_that_fails_is_an_exception_and_nothing_else)
coverage: packages oldest data  ## measure which lines of launcher/ the tests of make test run; COVERED=tests/unit: some of them
	rm -rf build/coverage
	$(BIN)/python -m coverage run -m pytest $(SIDE_BY_SIDE) -m "not forks and not long" $(LONG:%=--ignore tests/soak/%) \
	    $(UNMEASURED:%=--deselect %) $(PYTEST_ARGS) $(COVERED); code=$$?; \
	$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage html --quiet && $(BIN)/python -m coverage report && exit $$code

soak: packages data  ## random kills, many times, on every transport; trainings that survive kills
	LAUNCH_SOAK=$${LAUNCH_SOAK:-50} $(BIN)/python -m pytest $(SIDE_BY_SIDE) tests/soak $(EXAMPLES) $(PYTEST_ARGS)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m long tests $(PYTEST_ARGS)

lint: $(VENV)/.dev  ## ruff, codespell and import-linter
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/lint-imports --no-logo

types: $(VENV)/.dev  ## mypy
	$(BIN)/mypy

# No advertisement of the theme. With --quiet mkdocs would not count warnings as errors.
docs: $(VENV)/.dev  ## build the documentation as a site in site/; a dead link is an error
	@echo "building the site (up to a minute)"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "open site/index.html; for its search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

public: $(VENV)/.dev  ## renew what tests/test_public.py compares with, after a change of something public that is meant
	LAUNCH_RENEW_PUBLIC=1 $(BIN)/python -m pytest -p no:cacheprovider tests/test_public.py
	@git --no-pager diff --stat tests/public

promises: $(VENV)/.dev  ## renew the table of tests/README.md, after a change of tests/promises.toml or of a marker
	$(BIN)/python -m tests.promises
	@git --no-pager diff --stat tests/README.md

snapshots: $(VENV)/.dev  ## renew the texts in tests/**/__snapshots__, after a change of texts that is meant
	$(BIN)/python -m pytest -p no:cacheprovider -qq --snapshot-update $(SNAPSHOTS:%.ambr=%.py)
	@git --no-pager diff --stat -- '*.ambr'

picture: $(VENV)/.dev  ## record docs/terminal.svg, docs/failure.svg and docs/page.png from trainings
	$(BIN)/python examples/mnist_dist/data.py
	$(BIN)/python docs/picture.py

bench: $(BENCH)/.installed  ## measure side by side with honcho, mpirun and torchrun
	$(BENCH)/bin/python -m bench.run $(BENCH_ARGS)

man: build/launch.1  ## the man page: man -l build/launch.1

build/launch.1: $(SOURCES) $(VENV)/.demo
	@mkdir -p $(@D)
	$(BIN)/python -m launcher.cli.manpage > $@

packages:
	@PYTHON=$(PYTHON) .ci/packages test

wheel: python-ok  ## build a wheel into dist/
	$(PINNED) $(PYTHON) $(PIP) wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

dist: $(RELEASE)/.installed  ## build sdist and wheel into dist/ and check them; with TAG=v1.2.3, it must be the version
	rm -rf dist
	$(PINNED) $(RELEASE)/bin/python -m build
	$(PINNED) .ci/check-dist $(RELEASE)/bin/python "$$TAG"

install: python-ok  ## install launch for the Python of PYTHON=
	$(PYTHON) $(PIP) --quiet install .

uninstall:  ## the opposite
	$(PYTHON) $(PIP) --quiet uninstall -y tf-launcher

newest: packages  ## make test with the newest release of every package, in .venv-newest
	rm -rf .venv-newest
	$(MAKE) --no-print-directory test VENV=.venv-newest PINNED=

constraints: $(VENV)/.dev  ## renew constraints.txt: the newest release of every package that works with the others
	@{ echo "# Made by make constraints on $$(date -u +%F). The environments of tests, bench and docs, for each Python from 3.10:"; \
	    $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --all-extras \
	    --no-header --no-annotate --no-emit-index-url pyproject.toml; } > constraints.new
	@mv constraints.new constraints.txt
	@git --no-pager diff --stat constraints.txt

clean:  ## remove environments, caches and what building leaves
	rm -rf $(VENV) .venv-newest $(BENCH) $(RELEASE) build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python-ok:
	@command -v $(PYTHON) >/dev/null || { \
	    echo "make: no $(PYTHON) here: install Python 3.10 or newer, or say make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit("make: Python %d.%d is too old, 3.10 or \
	newer is needed: make PYTHON=python3.11" % sys.version_info[:2])'
	@PYTHON=$(PYTHON) .ci/packages demo

$(VENV)/bin/python $(BENCH)/bin/python $(RELEASE)/bin/python: | python-ok
	@echo "making a Python environment in $(@:/bin/python=)"
	@$(call tick,making it); $(PYTHON) -m venv $(@:/bin/python=)

# A shell command that shows what is still going on, until its shell ends: on a terminal in one line, and elsewhere in a
# line every ten seconds. $(1): what is going on.
define tick
if [ -t 1 ]; then every=1; line='... still $(1), after %s s\r'; wipe='\033[K'; \
else every=10; line='... still $(1), after %s s\n'; wipe=; fi; \
(for s in $$(seq 3600); do sleep 1 >/dev/null 2>&1; kill -0 $$$$ 2>/dev/null || break; \
    [ $$((s % every)) -ne 0 ] || printf "$$line" "$$s"; done) & trap "kill $$!; printf '$$wipe'" EXIT
endef

# $(1): what is installed, in words, $(2): the extras of setup.py.
define install
	@echo "installing $(1) into $(VENV) (once; some minutes)"
	@$(call tick,installing); \
	$(PINNED) $(BIN)/python .ci/install.py $(VENV) --editable '.[$(2)]' && \
	{ $(BIN)/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true; }
endef

# Editable: what is tested and shown is the source as it is now.
$(VENV)/.demo: $(PACKAGING) | $(VENV)/bin/python
	$(call install,launch and TensorFlow,tensorflow)
	@touch $@

$(VENV)/.dev: $(PACKAGING) | $(VENV)/bin/python
	$(call install,launch$(comma) TensorFlow and the tools of the tests,tensorflow$(comma)dev$(comma)docs)
	@touch $@ $(VENV)/.demo

# Not editable: what is measured is what a user installs.
$(BENCH)/.installed: $(PACKAGING) $(SOURCES) | $(BENCH)/bin/python
	rm -rf build
	$(PINNED) $(BENCH)/bin/python $(PIP) --quiet install '.[bench]'
	@touch $@

$(RELEASE)/.installed: pyproject.toml constraints.txt | $(RELEASE)/bin/python
	$(PINNED) $(RELEASE)/bin/python $(PIP) --quiet install build twine
	@touch $@
