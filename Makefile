# Everything happens in .venv, which is made on the first call; PYTHON is what makes it.
PYTHON ?= python3
BIN = .venv/bin
PYTEST = $(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

help:
	@echo 'make demo       record a real vLLM run and show its report'
	@echo 'make test       run the tests, but for the slow ones'
	@echo 'make test-all   run those too: whole engines and every page in a browser'
	@echo 'make lint       ruff, the direction of imports, mypy'
	@echo 'make venv       set up .venv only'

demo:
	@$(PYTHON) scripts/setup.py vllm
	@$(BIN)/python -m demo

test:
	@$(PYTHON) scripts/setup.py test vllm
	@$(PYTEST) -m 'not slow'

test-slow:
	@$(PYTHON) scripts/setup.py test vllm
	@$(PYTEST) -m slow

test-all: test test-slow

lint:
	@$(PYTHON) scripts/setup.py test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary scripts demo/*.py

venv:
	@$(PYTHON) scripts/setup.py test vllm

.PHONY: help demo test test-slow test-all lint venv
