# Everything happens in .venv, which is made on the first call; PYTHON is what makes it.
PYTHON ?= python3
BIN = .venv/bin

help:
	@echo 'make demo   record a real vLLM run and show its report'
	@echo 'make test   run the tests'
	@echo 'make lint   ruff and mypy'
	@echo 'make venv   set up .venv only'

demo:
	@$(PYTHON) scripts/setup.py vllm
	@$(BIN)/python -m demo

test:
	@$(PYTHON) scripts/setup.py test vllm
	@$(BIN)/python -m pytest --numprocesses 2 --no-loadscope-reorder

lint:
	@$(PYTHON) scripts/setup.py test
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/mypy --no-error-summary scripts demo/*.py

venv:
	@$(PYTHON) scripts/setup.py test vllm

.PHONY: help demo test lint venv
