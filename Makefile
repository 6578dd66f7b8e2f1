# From a fresh clone: make demo opens the page, make test checks everything. All targets are quick the
# second time: a stamp file in .venv says that the requirements it is named after are installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# uv where it is installed. Neither compiles modules that nobody may import.
UV := $(shell command -v uv 2>/dev/null)
PIP := $(if $(UV),$(UV) pip install --python $(BIN)/python --quiet,$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check)
RUN_STAMP := $(VENV)/.requirements
PEERS_STAMP := $(VENV)/.requirements-peers
DEV_STAMP := $(VENV)/.requirements-dev
ARGS ?=

.PHONY: help setup demo check test test-hostile hostile-setup bench space clean

help:
	@echo "make setup   environment in .venv, embedded pair ready"
	@echo "make demo    the page (ARGS='--port 7861' passes options to app.py)"
	@echo "make check   style, types and unit tests, without models, servers, browser or training"
	@echo "make test    all tests (ARGS='-k models' passes options to pytest)"
	@echo "make test-hostile   attackers, floods and faults, seventeen minutes"
	@echo "make space   what a Space gets, in build/space"
	@echo "make bench   figures of this machine in results/"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "specdemo needs Python 3.11 or later; run make PYTHON=python3.12, say.")'
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements.txt pyproject.toml | $(BIN)/python
	@echo "Installing what the demo needs (first time only)"
	$(PIP) -r requirements.txt -e .
	@touch $@

$(PEERS_STAMP): requirements.txt requirements-peers.txt pyproject.toml | $(BIN)/python
	@echo "Installing the engines to compare with (first time only)"
	$(PIP) -r requirements-peers.txt -e .
	@touch $(RUN_STAMP) $@

$(DEV_STAMP): requirements.txt requirements-torch.txt requirements-export.txt requirements-peers.txt requirements-serve.txt requirements-dev.txt pyproject.toml | $(BIN)/python
	@echo "Installing what the tests need (first time only)"
	@.ci/torch $(BIN)/python $(PIP)
	$(PIP) -r requirements-dev.txt -e .
	@touch $(RUN_STAMP) $(PEERS_STAMP) $@

setup: $(RUN_STAMP)
	$(BIN)/python -m specdemo fetch embedded

demo: setup
	$(BIN)/python app.py --pair embedded $(ARGS)

check: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow" $(ARGS)

test: $(DEV_STAMP)
	@sh .ci/chromium
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@# Side by side: the first run of mypy takes 20 s of one core.
	$(BIN)/mypy > $(VENV)/types & types=$$!; \
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 10 $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types; exit $$((tests + types))

# In parts, which print their figures at the end, also when the time is over; together seventeen minutes at most.
HOSTILE := crowd faults dearest proxy replicas schemas fuzz
test-hostile: $(HOSTILE:%=test-hostile-%)

HOSTILE_PYTEST = $(BIN)/python -m pytest -rP --durations 3 $(ARGS)
hostile-setup: $(DEV_STAMP)
	$(PIP) -r requirements-hostile.txt

test-hostile-crowd: hostile-setup
	HOSTILE_SECONDS=40 timeout -s INT 210 $(HOSTILE_PYTEST) tests/hostile/test_crowd.py

test-hostile-faults: hostile-setup
	timeout -s INT 150 $(HOSTILE_PYTEST) -n 2 tests/hostile/test_faults.py

test-hostile-dearest: hostile-setup
	timeout -s INT 320 $(HOSTILE_PYTEST) tests/hostile/test_dearest.py

test-hostile-proxy: hostile-setup
	timeout -s INT 60 $(HOSTILE_PYTEST) tests/hostile/test_proxy.py

test-hostile-replicas: hostile-setup
	timeout -s INT 400 $(HOSTILE_PYTEST) tests/hostile/test_replicas.py

test-hostile-schemas: hostile-setup
	HOSTILE_SECONDS=30 timeout -s INT 90 $(HOSTILE_PYTEST) -n 2 tests/hostile/test_schemas.py
	RANDOM_SCHEMAS=2000 timeout -s INT 300 $(HOSTILE_PYTEST) tests/test_text_grammar.py -k random

test-hostile-fuzz: hostile-setup
	FUZZ_SECONDS=15 timeout -s INT 90 $(HOSTILE_PYTEST) -n 2 tests/test_fuzz.py

bench: setup $(PEERS_STAMP)
	@mkdir -p results
	$(BIN)/python -m specdemo bench --pair embedded --peers openvino-genai \
		--json results/bench.json --html results/bench.html $(ARGS)

# The committed files; the lock stands in for requirements.txt, because a Space is built again years later.
space:
	rm -rf build/space
	mkdir -p build/space
	git archive HEAD | tar -x -C build/space
	cp requirements-space.txt build/space/requirements.txt

clean:
	rm -rf $(VENV) results
