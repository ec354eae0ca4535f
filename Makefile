# Two commands for newcomers: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install --disable-pip-version-check -c constraints.txt
# Where PyTorch comes from, if not from where all other packages do: its default build for Linux brings
# gigabytes of CUDA; https://download.pytorch.org/whl/cpu has one without.
TORCH_INDEX ?=
# One more than free cores: who waits for a VM or a process leaves its core to the others.
TEST_WORKERS ?= 3

# The largest download shows how far it is, where somebody can see it.
SHOWN := $(if $(MAKE_TERMOUT),,--quiet)

# Whatever pip may take, but for PyTorch, has its hash in requirements/dev.txt: constraints with hashes
# would make pip refuse this folder itself, and PyTorch of TORCH_INDEX, whose files are other ones.
LOCKED := install --disable-pip-version-check --quiet --require-hashes -r requirements/dev.txt
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate \
  --custom-compile-command 'make lock' -c constraints.txt
THIS := --quiet --no-build-isolation -e

.PHONY: help demo test test-all test-python mutants check openapi lock audit bench clean

help:
	@echo "make demo    train a GPT through preemptions on this machine (3 minutes, after the set-up)"
	@echo "make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu"
	@echo "             the same without CUDA, for machines that have no GPU: GBs less to set up"
	@echo "make test    run the tests (about 8 minutes on 2 cores)"
	@echo "make test-all  the same and more: every kill point, many random examples and seeds"
	@echo "make test-python PYTHON=python3.10  the unit tests on another Python"
	@echo "make mutants  change the code in single places; print the changes that no test noticed (an hour)"
	@echo "make check   lint, types, import contracts"
	@echo "make openapi  write docs/openapi.json anew, after a change of the REST API"
	@echo "make lock    write requirements/*.txt anew, after a change of constraints.txt or pyproject.toml"
	@echo "make audit   look for known faults of what is installed (needs the Python Package Index)"
	@echo "make bench   measure; results go to benchmarks/results/; PART=one-master: what one master carries"
	@echo "make clean   remove .venv and what the demo left"

.venv/ready: pyproject.toml constraints.txt requirements/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "error: spothop needs Python 3.10 or newer; hint: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
	  || { echo "error: this Python has no venv; hint: sudo apt-get install python3-venv"; exit 1; }
	@$(PYTHON) examples/demo/set_up.py --torch-index '$(TORCH_INDEX)'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip $(LOCKED)
ifeq ($(TORCH_INDEX),)
	$(PIP) $(SHOWN) torch
else
	$(PIP) $(SHOWN) --index-url '$(TORCH_INDEX)' --no-deps torch
endif
	$(PIP) $(THIS) '.[agent,master,simulator,train,dev]'
	@touch $@

demo: .venv/ready
	$(BIN)/python examples/demo

test: .venv/ready
	$(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations 25 --durations-min 5

test-all: .venv/ready
	$(BIN)/pytest --all

test-python:
	rm -rf .venv-python && $(PYTHON) -m venv .venv-python
	.venv-python/bin/python -m pip $(LOCKED)
	.venv-python/bin/pip install --disable-pip-version-check -c constraints.txt \
	  $(THIS) '.[agent,master,simulator,dev]'
	.venv-python/bin/pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder tests/unit tests/contract

mutants: .venv/ready
	$(PIP) $(THIS) '.[mutants]'
	$(BIN)/python tests/support/mutants.py $(if $(CHILDREN),--children $(CHILDREN)) \
	  $(if $(AGAIN),--again) $(if $(MUTANTS),'$(MUTANTS)')

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

openapi: .venv/ready
	$(BIN)/python tests/support/openapi_file.py

lock: .venv/ready
	$(PIP) $(THIS) '.[lock]'
	$(COMPILE) pyproject.toml --extra agent --extra master --output-file requirements/run.txt
	for extra in aws azure gcp postgres; do \
	  $(COMPILE) pyproject.toml --extra agent --extra master --extra $$extra \
	    --output-file requirements/$$extra.txt || exit 1; done
	$(COMPILE) pyproject.toml --extra agent --output-file requirements/agent.txt
	$(COMPILE) requirements/uv.in --output-file requirements/uv.txt
	$(COMPILE) requirements/node.in --output-file requirements/node.txt
	$(COMPILE) pyproject.toml --extra agent --extra master --extra simulator --extra dev requirements/tools.in \
	  --output-file requirements/dev.txt

audit: .venv/ready
	$(PIP) $(THIS) '.[audit]'
	$(BIN)/python tests/support/audit.py

bench: .venv/ready
	$(PIP) $(THIS) '.[bench]'
	$(BIN)/python benchmarks/run_all.py $(PART)

clean:
	rm -rf .venv .venv-python .demo .mutants demo-report.json
