.PHONY: setup test test-all lint quickstart

setup:
	bash scripts/setup.sh

test:
	bash scripts/test.sh

test-all:
	bash scripts/test.sh --all

lint: setup
	.venv/bin/python -m ruff check .

quickstart:
	bash scripts/quickstart.sh
