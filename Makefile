# The project's verbs. From nothing but python3.11, a C and C++ compiler, cmake and make: `make demo`.
# Where the packages come from is pip's own setting (mirror, proxy, offline folder).

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
CORES := $(shell nproc)
# Compiled modules are kept, also where the caller's environment says otherwise: tests start hundreds of processes, and
# each would compile all that it imports, which takes longer than most of them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup setup-worker demo test test-live test-busy test-faults fuzz check bench peers bench-live clean
.PHONY: check-format check-lint check-types check-sizes check-structure check-docs check-claims check-language
.PHONY: check-layers check-budget lint test-parts vllm test-vllm test-aarch64

help:
	@echo "make demo        chat with drafts from a paired worker, and a table of what they save (first run: minutes)"
	@echo "make setup       .venv, the pinned packages, llama.cpp, the models"
	@echo "make setup-worker  the same for a worker only, without torch"
	@echo "make check       format, lint, types, layers, sizes, structure, documents, claims, language, density"
	@echo "make lint        the checks that need only ruff and Python: seconds, also in a fresh clone"
	@echo "make test        every test that is not live"
	@echo "make test-live   the tests with real models, sockets and network namespaces"
	@echo "make test-busy   make test ten times beside a busy loop on each core (about an hour)"
	@echo "make test-parts  tests the core without each part, and without any (minutes)"
	@echo "make test-faults a table of faults with real processes: equal texts, stalls, recovery (about 10 minutes)"
	@echo "make fuzz        12.5 million random inputs of decoders, trees and the API, none of which may make anything fail"
	@echo "make bench       what the gateway's host side and one frame cost"
	@echo "make peers       llama.cpp's own server, built from the pinned source (6 to 30 minutes, once)"
	@echo "make bench-live  ours and that server on the same model, cores and prompts (about 10 minutes)"
	@echo "make vllm        vLLM for its tests, in .vllm: 3.3 GB, 3 minutes on two quiet cores (20 on busy ones)"
	@echo "make test-aarch64  a worker for aarch64, by qemu: tests, a known answer, a chat with a gateway for this processor"
	@echo "make test-vllm   edgespec-vllm in a real vLLM on the CPU: equal texts, whatever is drafted"
	@echo "make clean       remove .venv and caches (not the models)"

setup: $(VENV)/.models-ready

$(VENV)/.packages-ready: pyproject.toml lab/pyproject.toml requirements/dev.txt requirements/llama.txt tools/setup.sh tools/llama.cmake tools/amx_probe.cpp
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh packages
	@touch $@

# The formatter and linter alone, for a clone without set-up.
$(VENV)/.lint-ready: requirements/lint.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --only-binary :all: \
		--require-hashes --requirement requirements/lint.txt
	@touch $@

$(VENV)/.models-ready: $(VENV)/.packages-ready edgespec/shared/models.py edgespec/models/drafts.py
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh models
	@touch $@

setup-worker: $(VENV)/.worker-ready

$(VENV)/.worker-ready: pyproject.toml requirements/worker.txt requirements/llama.txt tools/setup.sh tools/llama.cmake tools/amx_probe.cpp
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash tools/setup.sh worker
	@touch $@

demo: setup
	@$(BIN)/edgespec demo

test: setup
	@$(PYTEST) -m "not live" -n $$(($(CORES) + 1)) --dist worksteal  # some tests wait

# Ten runs of `make test` beside a busy loop on each core: no test may depend on how fast the machine is.
test-busy: setup
	@$(BIN)/python -m tools.check.busy --runs 10 -- $(PYTEST) -q -m "not live" -n $(CORES) --dist worksteal

test-live: setup
	@$(PYTEST) -m live --durations=10

# `WHOLE="NAME NAME"`: parts to test by all unit tests and by a chat with a paired worker, on real models. `ALL=1` runs
# the core's unit tests without each part, too: a minute more for each.
test-parts: setup
	@$(BIN)/python -m tools.check.parts $(foreach name,$(WHOLE),--whole $(name)) $(if $(ALL),--units) --json out/parts.json

test-faults: setup
	@$(BIN)/python -m tests.faults --json out/faults.json
	@$(BIN)/python -m tests.faults --tight --only "is killed,are cut,hang,slots,slow reader" --json out/faults-tight.json

fuzz: setup
	@$(BIN)/python -m tools.fuzz --cases 12500000
	@PYTHONPATH=integrations/vllm $(BIN)/python -m integrations.vllm.tests.fuzz 1000000

# `make -k check` goes on after the first that fails.
check: check-format check-lint check-types check-sizes check-structure check-docs check-claims check-language check-layers check-budget

# What needs only ruff and the standard library.
lint: check-format check-lint check-sizes check-language check-budget

check-format: $(VENV)/.lint-ready
	$(BIN)/ruff format --check .

check-lint: $(VENV)/.lint-ready
	$(BIN)/ruff check .

check-sizes: $(VENV)/.lint-ready
	$(BIN)/python -m tools.check.sizes

check-language: $(VENV)/.lint-ready
	$(BIN)/python -m tools.check.language

check-budget: $(VENV)/.lint-ready
	$(BIN)/python -m tools.check.budget

check-types: $(VENV)/.packages-ready
	$(BIN)/mypy

check-structure: $(VENV)/.packages-ready
	$(BIN)/python -m tools.check.structure

check-docs: $(VENV)/.packages-ready
	$(BIN)/python -m tools.check.docs

check-claims: $(VENV)/.packages-ready
	$(BIN)/python -m tools.check.claims

check-layers: $(VENV)/.packages-ready
	$(PYTEST) -q tests/test_layers.py

bench: setup
	@$(BIN)/python -m tools.bench

peers: setup
	@$(BIN)/python -m tools.peers build

bench-live: peers
	@mkdir -p out
	@$(BIN)/python -m tools.bench live --json out/live.json

# A worker for aarch64, by qemu's user mode: its tests, a known answer of llama.cpp, and a chat with a gateway for this
# processor. Not part of `.ci/run`: it takes 20 minutes on two quiet cores, and more packages of Debian.
test-aarch64: setup .aarch64/.ready
	@.aarch64/python -m pytest -q -p no:cacheprovider -m "not live" $(ON_AARCH64)
	@.aarch64/python -m edgespec models check auto:quantised
	@$(BIN)/python -m tools.aarch64.chat .aarch64

ON_AARCH64 = tests/edgespec/core tests/edgespec/shared tests/edgespec/llamacpp

.aarch64/.ready: requirements/worker.txt requirements/gateway.txt requirements/llama.txt tools/aarch64/setup.sh
	@bash tools/aarch64/setup.sh .aarch64

vllm: .vllm/.ready

# The model's folder is made by the packages of .venv, of the model that is there.
.vllm/.ready: $(VENV)/.models-ready integrations/vllm/requirements.txt integrations/vllm/install.sh integrations/vllm/live/hf_folder.py
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash integrations/vllm/install.sh .vllm
	@touch $@

test-vllm: setup vllm
	@bash integrations/vllm/live/run.sh .vllm
	@$(BIN)/python -m integrations.vllm.live.served .vllm --prompts 2 --streams 1
	@$(BIN)/python -m integrations.vllm.live.parallel .vllm
	@$(BIN)/python -m integrations.vllm.live.gateway .vllm
	@$(BIN)/python -m integrations.vllm.live.rows .vllm --limit 2 --max-tokens 48
	@$(BIN)/python -m integrations.vllm.live.faults .vllm

clean:
	rm -rf $(VENV) *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
