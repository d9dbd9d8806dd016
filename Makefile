# Targets for developers. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROGRAMS := $(VENV)/.programs
STAMP := $(VENV)/.installed

# pip also uses a folder of wheels beside the checkout, if it exists. The variable is exported for the
# build of the test images.
WHEELS := $(abspath $(wildcard ../shared/wheels))
ifneq ($(WHEELS),)
export PIP_FIND_LINKS := $(sort $(PIP_FIND_LINKS) $(WHEELS))
endif

# Tests start thousands of processes. Without Python's cache of compiled modules each of them compiles
# what it imports: 4 s of CPU for torch, 2 s for the operator.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-18s %s\n", $$1, $$2}'

# A virtual environment with all distributions (editable) and the tools, at the locked versions and
# with the locked hashes. pip prints nothing for minutes, so a line before it says how much it fetches.
# Python compiles what is imported, and nothing else needs it.
PIP_INSTALL := $(PY) -m pip install --quiet --no-compile --require-hashes --only-binary=:all:
TORCH_CPU := $(shell sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements/trainer-cpu.txt)
$(PROGRAMS): $(addprefix requirements/,client.txt trainer-cpu.txt trainer-cuda.txt) $(addsuffix /pyproject.toml,protocol operator client trainer-image)
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@if $(PY) -m pip index versions torch 2> /dev/null | grep -F '$(TORCH_CPU)' > /dev/null; \
	  then torch=cpu; size="300 MB of Python packages, with torch's CPU build."; \
	  else torch=cuda; size="3 GB of Python packages, with torch's CUDA build. The CPU build needs 300 MB: README.md says how to get it."; \
	  fi; \
	  test -e $@ || echo "Fetching about $$size"; \
	  $(PIP_INSTALL) -r requirements/client.txt -r requirements/trainer-$$torch.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation -e protocol -e operator -e client -e trainer-image
	touch $@

$(STAMP): $(PROGRAMS) requirements/dev.txt
	@test -e $@ || echo "Fetching about 200 MB of Python tools."
	$(PIP_INSTALL) -r requirements/dev.txt
	touch $@

.PHONY: venv
venv: $(STAMP) ## Create .venv with everything that the other targets need

.PHONY: demo
demo: $(PROGRAMS) ## Train on this machine, kill a rank and see the job recover
	$(PY) -m ddp_client.local manifests/examples/digits-gloo.yaml --kill-rank 1@step100

.PHONY: prepare test test-unit test-integration test-e2e
prepare: $(STAMP) ## Build what the test cluster needs: 15 minutes, once; continues after an interruption
	$(PY) -m tests.cluster prepare

test: $(STAMP) ## The daily tests; builds first what they need. SHARE=3/7 adds a seventh of the nightly ones
	$(PY) -m tests.run $(if $(SHARE),--share $(SHARE))

test-unit: $(STAMP) ## Tests of decisions, without processes or Kubernetes
	$(PY) -m tests.run decisions

test-integration: $(STAMP) ## Tests against a real kube-apiserver
	$(PY) -m tests.cluster prepare --control-plane-only
	$(PY) -m pytest tests/integration

test-e2e: prepare ## Tests with real pods on a real cluster
	$(PY) -m pytest tests/cluster tests/e2e

# The trainer's tests, with another torch on top of .venv. pip prefers a CPU build if it finds one;
# otherwise it fetches about 3 GB.
VERSION ?= 2.7.0
TORCH_VENV = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ddp-operator/torch-$(VERSION)
TORCH_TESTS ?= tests/trainer
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
	PYTHONPATH=$(CURDIR)/protocol:$(CURDIR)/operator:$(CURDIR)/client:$(CURDIR)/trainer-image $(TORCH_VENV)/bin/python -m pytest --nightly=all $(TORCH_TESTS)

.PHONY: test-schedulers
test-schedulers: $(STAMP) ## Gangs with real schedulers; builds Coscheduling first, for ten minutes
	$(PY) -m tests.cluster prepare --control-plane-only
	$(PY) -m tests.cluster.preparation.coscheduling
	$(PY) -m pytest --nightly=all tests/gang_schedulers

.PHONY: test-gpu
test-gpu: $(STAMP) ## The trainer's tests that need a GPU; one is enough
	$(PY) -m pytest --nightly=all -s tests/trainer/gpu

.PHONY: chaos
chaos: $(STAMP) ## Kill, freeze and remove things at random for minutes; everything must recover
	$(PY) -m tests.run chaos

.PHONY: nightly
nightly: $(STAMP) ## All tests, also the rare and long ones, with random chaos and all incidents
	$(PY) -m tests.run nightly

.PHONY: incidents
incidents: prepare ## Replay a bad night on real clusters, in about an hour, and write its table to the docs
	$(MAKE) -j4 incidents-survives incidents-torchrun incidents-JobSet incidents-TrainJob
incidents-%: # a column of the table, on a cluster of its own
	$(PY) -m pytest --nightly=all --write-table tests/incidents -k $*

.PHONY: bare
bare: ## Remove everything that earlier runs left on this machine, then time README's two commands
	$(PYTHON) -m tests.bare

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
.PHONY: lint lint-code lint-types lint-workflows
lint: lint-code lint-types lint-workflows ## Run ruff, mypy, import-linter, the checker of prose and, with Go, actionlint

lint-code: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(PY) -m tools.prose
	PYTHONPATH=protocol:operator:client:trainer-image $(VENV)/bin/lint-imports

lint-types: $(STAMP)
	$(VENV)/bin/mypy

lint-workflows:
	@if command -v go > /dev/null; \
	  then echo go run $(ACTIONLINT); go run $(ACTIONLINT); \
	  else echo "No Go on this machine: the workflows are not checked."; \
	  fi

.PHONY: generate check-generated
generate: $(STAMP) ## Write generated files: the CRD, JSON Schemas, tables in docs
	$(PY) -m ddp_operator crd > crds/ddpjobs.yaml
	$(PY) -m tools.json_schema
	$(PY) -m tools.chart generate
	$(PY) -m tests.trainer.support.faults
	$(PY) -m tools.error_page

check-generated: generate ## Fail if a generated file is out of date
	git diff --exit-code -- crds manifests/chart docs/concepts/faults.md docs/reference/errors.md

.PHONY: docs
docs: $(STAMP) ## Build the documentation in build/docs; a dead link is an error (DOCS_REPOSITORY=URL links the source)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open build/docs/index.html"

.PHONY: release
release: $(STAMP) ## Write chart, ddp-operator.yaml, plugin, wheels and checksums to dist/, for the image in REGISTRY with DIGEST
	$(PY) -m tools.chart release --registry "$(REGISTRY)" --digest "$(DIGEST)" --downloads "$(DOWNLOADS)"

# The time in the image is the commit's. BuildKit compresses the layers, so its version is part of the
# digest. --no-cache: layers in a cache keep the time of another commit.
BUILDER := ddp-release
BUILDKIT := moby/buildkit:v0.34.2
IMAGE ?= ddp-operator
.PHONY: release-image
release-image: ## Build IMAGE (ddp-operator, ddp-trainer or ddp-trainer-cpu) as in a release, and print its digest (needs Docker)
	mkdir -p build/images
	docker buildx inspect $(BUILDER) > /dev/null 2>&1 || \
	  docker buildx create --name $(BUILDER) --driver docker-container --driver-opt image=$(BUILDKIT)
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) docker buildx build --builder $(BUILDER) --no-cache \
	  --platform linux/amd64 --provenance=false --file $(if $(findstring trainer,$(IMAGE)),trainer-image/)Dockerfile \
	  $(if $(findstring -cpu,$(IMAGE)),--build-arg TORCH=cpu --build-arg PIP_EXTRA_INDEX_URL) \
	  --output type=oci,dest=build/images/$(IMAGE).tar,rewrite-timestamp=true \
	  --metadata-file build/images/$(IMAGE).json .
	@$(PYTHON) -c 'import json, sys; print(json.load(sys.stdin)["containerimage.digest"])' < build/images/$(IMAGE).json

.PHONY: plugin
plugin: $(STAMP) ## Write kubectl ddp as one file, dist/kubectl-ddp, for this Python and platform
	$(PY) -m tools.chart plugin

# torch's builds for CPU and CUDA depend on different packages, so each has a file. The CPU build is
# found as by `make venv`.
.PHONY: lock
lock: export UV_FIND_LINKS := $(PIP_FIND_LINKS)
lock: export UV_EXTRA_INDEX_URL := $(PIP_EXTRA_INDEX_URL)
lock: $(STAMP) ## Resolve requirements/*.in to exact pins with hashes
	cd requirements && for part in operator client trainer-cuda trainer-cpu dev; do \
	  ../$(VENV)/bin/uv pip compile --python ../$(PY) --quiet --generate-hashes --no-header \
	    --output-file $$part.txt $$part.in $$([ $$part != dev ] || echo --no-emit-package torch); \
	done

# Lists of the lock files have the hash of every Python package. Lists of images have the packages of
# Debian too: IMAGES="NAME=SOURCE…", where SOURCE is docker-archive:FILE or registry:NAME@DIGEST.
SBOM ?= build/sbom
SYFT := github.com/anchore/syft/cmd/syft@v1.57.1
CYCLONEDX := $(PY) -m cyclonedx_py requirements --output-reproducible
.PHONY: sbom
sbom: $(STAMP) ## Write bills of materials (CycloneDX) to build/sbom; IMAGES="NAME=SOURCE…" adds images
	mkdir -p $(SBOM)
	for part in operator client; do \
	  $(CYCLONEDX) requirements/$$part.txt --pyproject $$part/pyproject.toml \
	    --output-file $(SBOM)/ddp-$$part-python.cdx.json; \
	done
	for torch in cpu cuda; do \
	  $(CYCLONEDX) requirements/trainer-$$torch.txt --pyproject trainer-image/pyproject.toml \
	    --output-file $(SBOM)/ddp-trainer-$$torch-python.cdx.json; \
	done
	for image in $(IMAGES); do \
	  go run $(SYFT) scan --quiet "$${image#*=}" -o "cyclonedx-json=$(SBOM)/$${image%%=*}-image.cdx.json"; \
	done

.PHONY: images cluster-up cluster-down
images: $(STAMP) ## Build the images of the project and of its tests; load them into a running test cluster
	$(PY) -m tests.cluster images

cluster-up: $(STAMP) ## Start a local Kubernetes and print the KUBECONFIG to export
	$(PY) -m tests.cluster up

cluster-down: $(STAMP) ## Remove that Kubernetes and all its processes
	$(PY) -m tests.cluster down

.PHONY: bench
bench: prepare ## Measure operator and trainer; BENCH="NAME..." selects measurements
	$(PY) -m tests.bench $(BENCH)
