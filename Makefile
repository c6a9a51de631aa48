# The two commands of the README are `make demo` and `make test`; each sets everything up by itself.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test lint docs soundness bench lock clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "smoothrl needs Python 3.10 or later; try: make PYTHON=python3.12 setup"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/smoothrl demo

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy --strict src

test: lint
	$(BIN)/pytest -q -n $(WORKERS) --dist worksteal

soundness: $(STAMP)
	$(BIN)/pytest -q -m slow tests/certificates tests/test_attack_against_certificate.py

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/mkdocs build --strict

lock: $(STAMP)
	$(BIN)/python tools/lock.py > constraints.txt

clean:
	rm -rf $(VENV) build dist site .mypy_cache .ruff_cache .pytest_cache
