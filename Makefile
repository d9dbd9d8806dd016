# Everything a developer does with this repository. `make help` lists it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROGRAMS := $(VENV)/.programs
STAMP := $(VENV)/.installed
TORCH := $(shell sed -n 's/^torch==//p' requirements/trainer.txt)

# pip also looks in a folder of wheels beside the checkout, if there is one. Exported: what builds the
# test images fetches wheels too.
WHEELS := $(abspath $(wildcard ../shared/wheels))
ifneq ($(WHEELS),)
export PIP_FIND_LINKS := $(sort $(PIP_FIND_LINKS) $(WHEELS))
endif

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

# A virtual environment with both distributions (editable), then the tools, at the locked versions. pip
# wants hashes of all requirements or of none, and only the operator's have them. pip prints nothing
# for minutes, so a line before it says how much it fetches.
$(PROGRAMS): requirements/operator.txt requirements/trainer.txt operator/pyproject.toml trainer-image/pyproject.toml
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -m pip show torch 2> /dev/null | grep '^Version: $(TORCH)' > /dev/null || \
	  if $(PY) -m pip index versions torch 2> /dev/null | grep -F '$(TORCH)+cpu' > /dev/null; \
	  then echo "Fetching about 300 MB of Python packages, with torch's CPU build."; \
	  else echo "Fetching about 3 GB of Python packages, with torch's CUDA build. The CPU build needs" \
	    "300 MB: README.md says how to get it."; \
	  fi
	$(PY) -m pip install --quiet -r requirements/operator.txt
	$(PY) -m pip install --quiet -r requirements/trainer.txt setuptools
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e operator -e trainer-image
	touch $@

$(STAMP): $(PROGRAMS) requirements/dev.txt
	@test -e $@ || echo "Fetching about 200 MB of Python tools."
	$(PY) -m pip install --quiet -r requirements/trainer.txt -r requirements/dev.txt
	touch $@

.PHONY: venv
venv: $(STAMP) ## Create .venv with everything the other targets need

.PHONY: demo
demo: $(PROGRAMS) ## Train on this machine, lose a rank on purpose, see it recover
	$(PY) -m ddp_operator local manifests/examples/digits-gloo.yaml --kill-rank 1@step100

.PHONY: prepare test test-unit test-integration test-e2e
prepare: $(STAMP) ## Get and build what the test cluster needs: once, a quarter of an hour; goes on if cut off
	$(PY) -m tests.cluster prepare

test: $(STAMP) ## All tests that this machine can run; prepares first
	$(PY) -m tests.run

test-unit: $(STAMP) ## The pure ring: no processes, no Kubernetes
	$(PY) -m pytest tests/unit tests/simulation

test-integration: $(STAMP) ## Against a real kube-apiserver
	$(PY) -m tests.cluster prepare --control-plane-only
	$(PY) -m pytest tests/integration

test-e2e: prepare ## Real pods on a real cluster, the operator running in it
	$(PY) -m pytest tests/cluster tests/e2e

# The tests of what calls torch, with another torch laid over .venv. pip prefers a CPU build that it
# finds; without one it fetches about 3 GB.
VERSION ?= 2.7.0
TORCH_VENV = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ddp-operator/torch-$(VERSION)
TORCH_TESTS ?= $(addprefix tests/trainer/,recovery process_group collectives devices run library launcher stream_device system)
.PHONY: test-torch
test-torch: $(STAMP) ## The trainer's tests on another torch: VERSION=2.7.0 (an environment of 1 to 6 GB)
	@test -e $(TORCH_VENV)/.installed || echo "Fetching torch $(VERSION), up to 3 GB."
	test -e $(TORCH_VENV)/.installed || { \
	  $(PYTHON) -m venv --clear $(TORCH_VENV); \
	  $(TORCH_VENV)/bin/python -m pip install --quiet torch==$(VERSION); \
	  $(PY) -c 'import site; print(*site.getsitepackages())' \
	    > "$$($(TORCH_VENV)/bin/python -c 'import site; print(*site.getsitepackages())')/rest.pth"; \
	  touch $(TORCH_VENV)/.installed; \
	}
	PYTHONPATH=$(CURDIR)/operator:$(CURDIR)/trainer-image $(TORCH_VENV)/bin/python -m pytest $(TORCH_TESTS)

.PHONY: test-gpu
test-gpu: $(STAMP) ## The trainer's tests that need a GPU; one is enough
	$(PY) -m pytest -s tests/trainer/gpu

.PHONY: chaos
chaos: $(STAMP) ## Kill, freeze and take away at random for minutes: everything must end well
	$(PY) -m tests.run chaos

.PHONY: bare
bare: ## Remove all that earlier runs have left on this machine, then time README's two commands
	$(PYTHON) -m tests.bare

.PHONY: lint
lint: $(STAMP) ## ruff, mypy --strict, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	PYTHONPATH=operator:trainer-image $(VENV)/bin/lint-imports

MESSAGES := operator/ddp_operator/job/failure/messages.py
MESSAGES_COPY := trainer-image/ddp_trainer/process_group/messages.py
.PHONY: generate check-generated
generate: $(STAMP) ## Write what is generated: the CRD, the chart's schema, tables in the docs, the trainer's copy of messages
	$(PY) -m ddp_operator crd > crds/ddpjobs.yaml
	$(PY) -m tools.json_schema
	cp $(MESSAGES) $(MESSAGES_COPY)
	$(PY) -m tools.chart generate
	$(PY) -m tests.trainer.support.faults

check-generated: generate ## Fail when what is stored of them is not what the models say
	git diff --exit-code -- crds manifests/chart $(MESSAGES_COPY) docs/concepts/faults.md

.PHONY: docs
docs: $(STAMP) ## Build the documentation to build/docs; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open build/docs/index.html"

.PHONY: release
release: $(STAMP) ## Write chart, ddp-operator.yaml, plugin and checksums to dist/; REGISTRY=… has the images
	$(PY) -m tools.chart release --registry "$(REGISTRY)" --downloads "$(DOWNLOADS)"

.PHONY: plugin
plugin: $(STAMP) ## Write kubectl ddp as one file, dist/kubectl-ddp, for this Python and platform
	$(PY) -m tools.chart plugin

.PHONY: lock
# Hashes for what runs with rights in a cluster. torch has none that hold everywhere: its variants, for
# CPU or CUDA, are different files of one version, from different indices.
lock: $(STAMP) ## Resolve requirements/*.in to exact pins, the operator's with hashes
	cd requirements && for part in operator trainer dev; do \
	  ../$(VENV)/bin/pip-compile --quiet --strip-extras --allow-unsafe --no-header --no-emit-index-url \
	    --no-emit-find-links --no-emit-options --output-file $$part.txt $$part.in \
	    $$([ $$part != operator ] || echo --generate-hashes); \
	done
	sed -i 's/^\(torch==[0-9.]*\)+.*/\1/' requirements/trainer.txt requirements/dev.txt

.PHONY: sbom
sbom: $(STAMP) ## Write what the operator's image is made of, in CycloneDX, to build/
	mkdir -p build
	$(PY) -m cyclonedx_py requirements requirements/operator.txt --pyproject operator/pyproject.toml \
	  --output-reproducible --output-file build/ddp-operator.cdx.json

.PHONY: images cluster-up cluster-down
images: $(STAMP) ## Build the images of the project and of its tests; a test cluster that runs gets them
	$(PY) -m tests.cluster images

cluster-up: $(STAMP) ## Start a Kubernetes to play with; prints the KUBECONFIG to export
	$(PY) -m tests.cluster up

cluster-down: $(STAMP) ## Remove that Kubernetes and all that it started
	$(PY) -m tests.cluster down

.PHONY: bench
bench: prepare ## Measure operator and trainer against the bare minimum; BENCH="NAME..." for a few
	$(PY) -m tests.bench $(BENCH)
