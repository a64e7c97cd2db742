# setup: the development environment in .venv    serve: the demo model, and one answer    test, lint, bench: as named
# bench-cpu: the demo model on this CPU; PEER='vllm serve FOLDER --port {port} ...' measures another server beside it
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup serve test lint bench bench-cpu soak
setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

serve: setup
	$(BIN)/radixlm demo

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check radixlm tests
	$(BIN)/ruff format --check radixlm tests
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m radixlm.benchmark.serving --help

bench-cpu: setup
	$(BIN)/python -m radixlm.benchmark.cpu_matrix --out /tmp/radixlm-bench-cpu --peer "$(PEER)"

soak: setup
	$(BIN)/python -m tests.sim.soak
