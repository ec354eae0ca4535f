# Two commands for newcomers: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
BIN := .venv/bin
TEST_WORKERS ?= 2

.PHONY: help demo test test-all check bench clean

help:
	@echo "make demo    train a GPT through preemptions on this machine (under 3 minutes)"
	@echo "make test    run the tests (6 minutes on 2 cores)"
	@echo "make test-all  the same and more: every kill point, many random examples and seeds"
	@echo "make check   lint, types, import contracts"
	@echo "make bench   measure; results go to benchmarks/results/"
	@echo "make clean   remove .venv and what the demo left"

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: spothop needs Python 3.10 or newer; hint: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "error: this Python has no venv; hint: sudo apt-get install python3-venv"; exit 1; }
	@echo "setting up .venv (once; PyTorch makes it a minute or two) ..."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e '.[agent,master,simulator,train,dev]'
	@touch $@

demo: .venv/ready
	$(BIN)/python examples/demo

test: .venv/ready
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadgroup

test-all: .venv/ready
	$(BIN)/pytest --all

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/ready
	$(BIN)/python benchmarks/run_all.py

clean:
	rm -rf .venv .demo demo-report.json
