# Everything happens in .venv, which is made on the first call; PYTHON is what makes it.
PYTHON ?= python3
BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

help:
	@echo 'make demo       record a real vLLM run and show its report'
	@echo 'make test       run the tests, but for the slow ones'
	@echo 'make test-all   run those too: whole engines and every page in a browser'
	@echo 'make test-again run those that failed once more, one after another'
	@echo 'make worlds     try many random worlds in place of a few'
	@echo 'make mutants    random faults, and which the tests find (SEED=, COUNT=, SINCE=, IN=)'
	@echo 'make reach      which tests run which lines, anew, for make mutants (IN=tests/ab: of these)'
	@echo 'make lint       ruff, the direction of imports, plain names, mypy'
	@echo 'make venv       set up .venv only'
	@echo 'make check-vllm WHEEL=...  print what no row knows of a vLLM wheel'
	@echo 'make tables WHEEL=...      add a vLLM wheel to the generated tables'

demo:
	@$(PYTHON) scripts/setup.py vllm
	@$(BIN)/python -m demo

test:
	@$(PYTHON) scripts/setup.py test vllm
	@$(PYTEST) -m 'not slow'

test-slow:
	@$(PYTHON) scripts/setup.py test vllm
	@$(PYTEST) -m slow

test-again:
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none

test-all: test test-slow

lint:
	@$(PYTHON) scripts/setup.py test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest -q -n0 --no-header tests/test_plain_names.py
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary scripts demo/*.py
	@$(BIN)/mypy --no-error-summary -p benchmarks

reach:
	@$(PYTHON) scripts/setup.py test vllm
	@$(if $(IN),,rm -rf build/reach)
	@-$(PYTEST) -q -p scripts.reach -m 'not slow' $(IN)

build/reach:
	@$(MAKE) reach

mutants: | build/reach
	@$(PYTHON) scripts/setup.py test vllm
	@$(BIN)/python -m scripts.mutants --seed $(or $(SEED),0) --count $(or $(COUNT),50) $(if $(SINCE),--since $(SINCE)) $(IN)

worlds:
	@$(PYTHON) scripts/setup.py test vllm
	@SPARK_PROF_WORLDS=nightly $(PYTEST) tests/world

venv:
	@$(PYTHON) scripts/setup.py test vllm

check-vllm:
	@$(BIN)/python -m scripts.vllm_sources --check $(WHEEL)

tables:
	@$(BIN)/python -m scripts.vllm_sources $(WHEEL)

.PHONY: help demo test test-slow test-again test-all lint mutants reach worlds venv check-vllm tables
