# Everything starts here: each target makes what it needs, from a fresh clone on. `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

DEPS := $(VENV)/.deps.stamp
CAPTURE := $(VENV)/.capture.stamp
EXECUTOR := $(VENV)/.executor.stamp
WORDS := gt_runtime/protocol/words.hpp
# ninja is looked for on PATH, and must not take make's job server for its own
BUILD = MAKEFLAGS= PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python setup.py -q build_ext --inplace --build-temp

# make demo: how long (empty: until q), how many workers
DEMO_SECONDS ?=
DEMO_WORKERS ?= 2
# make conformance, make bench, make test: further arguments
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help venv native native-capture native-executor test lint fuzz conformance bench demo wheel screenshots clean distclean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "GT needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make venv PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# torch first: the native parts are built against it, without build isolation
$(DEPS): constraints.txt pyproject.toml | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt setuptools wheel ninja numpy torch
	GT_NATIVE=none $(PIP) install --quiet -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

$(CAPTURE): $(DEPS) setup.py $(WORDS) $(wildcard gt/_native/*.cpp gt/_native/*.hpp gt/_native/*.h)
	GT_NATIVE=gt._native._capture $(BUILD) build/capture
	@touch $@

$(EXECUTOR): $(DEPS) setup.py $(WORDS) $(wildcard gt_runtime/worker/_native/*.cpp gt_runtime/worker/_native/*.hpp gt_runtime/worker/_native/*.h)
	GT_NATIVE=gt_runtime.worker._native._executor $(BUILD) build/executor
	@touch $@

native-capture: $(CAPTURE) ; @:
native-executor: $(EXECUTOR) ; @:

native: $(DEPS) ## build the two C++ modules in place, both at once, only what changed
	@$(MAKE) --no-print-directory -j2 native-capture native-executor

venv: native ## .venv with exact versions, GT installed editable, native parts built

lint: venv ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check gt gt_runtime gt_top benchmarks examples screenshots tests setup.py
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, types, import contracts and all tests
	$(BIN)/python -m pytest $(ARGS)

fuzz: venv ## hostile messages by the million: the dispatcher's core, then a real cluster (ARGS="--seed 7 --messages 10000")
	$(BIN)/python -m tests.fuzz $(ARGS)

conformance: venv ## PyTorch's own operator cases on mux, all of them, with progress
	$(BIN)/python -m tests.conformance $(ARGS)

bench: venv ## measure against plain PyTorch; keeps benchmarks/results/DATE-*.json
	$(BIN)/python -m benchmarks.run $(ARGS)

demo: venv ## two training programs on a local cluster, gt-top attached (DEMO_SECONDS=20 ends by itself)
	@$(BIN)/python examples/demo.py --workers $(DEMO_WORKERS) $(if $(DEMO_SECONDS),--seconds $(DEMO_SECONDS))

screenshots: venv ## take screenshots/ anew
	$(BIN)/python screenshots/make.py
	$(BIN)/python screenshots/live.py

wheel: venv ## dist/*.whl with the native parts in it
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) wheel --quiet --no-deps --no-build-isolation -w dist .
	@ls -l dist/*.whl

clean: ## remove builds and caches
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f gt/_native/*.so gt_runtime/worker/_native/*.so $(CAPTURE) $(EXECUTOR)
	find . -name __pycache__ -not -path './$(VENV)/*' -type d -exec rm -rf {} +

distclean: clean ## clean, and the environment too
	rm -rf $(VENV)
