# Everything a developer does with this repository. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

# A virtual environment with both distributions (editable) and the tools, at the locked versions.
$(STAMP): requirements/operator.txt requirements/trainer.txt requirements/dev.txt operator/pyproject.toml trainer-image/pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet -r requirements/operator.txt -r requirements/trainer.txt -r requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e operator -e trainer-image
	touch $@

.PHONY: venv
venv: $(STAMP) ## Create .venv with everything the other targets need
