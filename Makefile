.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# On two cores two processes of one thread each are faster than one process of two threads.
# Bytecode is kept whatever the environment says: the next run, and processes that tests start, need not compile again.
TEST_ENV := OMP_NUM_THREADS=1 MPLBACKEND=agg PYTHONDONTWRITEBYTECODE=
WORKERS ?= 2

.PHONY: help install mnist experiments test test-slow test-gpu test-browser lint format typecheck docs notebooks bench bench-gpu clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torchvision,anndata,test,docs,dev]'
	touch $@

install: $(STAMP) ## create .venv and install the package with all extras

mnist: $(STAMP) ## train the Poincaré VAE on MNIST (the bundled subset when MNIST is not to be had)
	$(BIN)/python examples/mnist_svi.py $(ARGS)

experiments: $(STAMP) ## reproduce the paper's tables and figures, for example ARGS="table1 --seeds 2"
	$(BIN)/python -m experiments $(or $(ARGS),--help)

test: $(STAMP) ## run the tests and the doctests
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-slow: $(STAMP) ## run the tests that take minutes
	$(TEST_ENV) $(BIN)/python -m pytest -n $(WORKERS) -m slow $(ARGS)

test-gpu: $(STAMP) ## run the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-browser: $(STAMP) ## run the tests of the pages that need Chromium
	$(TEST_ENV) $(BIN)/python -m pytest -m 'browser and not slow' tests/browser $(ARGS)

lint: $(STAMP) ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(STAMP) ## rewrite to style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: $(STAMP) ## check types
	$(BIN)/mypy

docs: $(STAMP) ## build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

notebooks: $(STAMP) ## run the tutorials whose code has changed, and keep what they show; ARGS=--all runs all
	OMP_NUM_THREADS=1 $(BIN)/python docs/notebooks.py $(ARGS)

bench: $(STAMP) ## measure the ratios of docs/performance on one CPU thread
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.run $(ARGS)

bench-gpu: $(STAMP) ## measure training and evaluation on a CUDA device
	$(BIN)/python -m benchmarks.gpu $(ARGS)

clean: ## remove what is built, but keep .venv
	rm -rf docs/_build build .mypy_cache .ruff_cache .pytest_cache *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
