# `make` lists the targets. Everything runs in .venv, which is made once and again when
# pyproject.toml or constraints.txt change. Needs Python 3.12 or later, make and a package registry.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
VLLM := .venv-vllm
STAMP := $(VENV)/.installed
CHECKED := src tests $(wildcard end_to_end benchmarks)
WORKERS ?= 2

.PHONY: help
help: ## List the targets.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

.PHONY: install
install: $(STAMP) ## Make .venv with everything pinned by constraints.txt.

# The first interpreter that runs and is new enough: a pyenv shim may exist and refuse to.
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then \
	  for name in $(PYTHON) python3.12 python3 python3.13 python3.14; do \
	    if "$$name" -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then found="$$name"; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "maxtext needs Python 3.12 or later with its venv module; none of python3.12," \
	      "python3, python3.13, python3.14 is one." >&2; \
	    echo "Install one (Debian: python3.12 and python3.12-venv; or pyenv install 3.12), or" \
	      "name it: make install PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$("$$found" --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(BIN)/python -m ensurepip >/dev/null
	@$(BIN)/python -c 'import uv' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv || { \
	    echo "The package registry gave no uv: see pip's message above. Behind a mirror, set" \
	      "PIP_INDEX_URL." >&2; exit 1; }
	@$(BIN)/python -m uv pip install --python $(BIN)/python --quiet --compile-bytecode \
	    $(if $(PIP_INDEX_URL),--default-index $(PIP_INDEX_URL)) -c constraints.txt -e '.[dev]' || { \
	    echo "The packages could not be installed: see uv's message above. Behind a mirror, set" \
	      "PIP_INDEX_URL." >&2; exit 1; }
	@touch $@

.PHONY: install-vllm
install-vllm: $(VLLM)/.installed ## Make .venv-vllm, with vLLM beside maxtext: 10 GB, for Linux.

$(VLLM)/.installed: pyproject.toml constraints-vllm.txt | $(STAMP)
	@$(BIN)/python -m uv venv --quiet --allow-existing --python 3.12 $(VLLM)
	@$(BIN)/python -m uv pip install --python $(VLLM)/bin/python --quiet --compile-bytecode \
	    $(if $(PIP_INDEX_URL),--default-index $(PIP_INDEX_URL)) \
	    -c constraints-vllm.txt -e '.[vllm-dev]' || { \
	    echo "vLLM could not be installed: see uv's message above. Behind a mirror, set" \
	      "PIP_INDEX_URL." >&2; exit 1; }
	@touch $@

.PHONY: quickstart
# The setting lets the C library ask for huge pages, which spares a CPU a fifth of each step.
quickstart: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1
quickstart: $(STAMP) ## Train a small Llama on Shakespeare's plays and let it write.
	@$(BIN)/python -m maxtext.train configs/quickstart.yml
	@$(BIN)/python -m maxtext.decode configs/quickstart.yml prompt=$$'ROMEO.\nBut soft,'
	@echo
	@echo "What to run next:"
	@echo "  source $(BIN)/activate"
	@echo "  python -m maxtext.decode configs/quickstart.yml prompt='MACBETH.'   other words to go on from"
	@echo "  python -m maxtext.train configs/quickstart.yml steps=2000           train on from where it stopped"
	@echo "  python -m maxtext.train model_name=llama3.2-1b print_config=true    a released model's config"
	@echo "  python -m maxtext.train --help rope                                 the keys about a word"

.PHONY: test
test: $(STAMP) ## Run the fast tests.
	@$(BIN)/python -m pytest -q -m "not slow" -n $(WORKERS)

.PHONY: test-slow
test-slow: $(STAMP) ## Run the tests that start processes or train.
	@$(BIN)/python -m pytest -q -m slow -n $(WORKERS) --dist loadfile

.PHONY: test-vllm
# Warnings of vLLM and of what it brings are theirs.
test-vllm: $(VLLM)/.installed ## Run the tests of the real vLLM, and of what transformers computes.
	@$(VLLM)/bin/python -m pytest -q -W default tests/vllm tests/parity/test_live.py

.PHONY: lint
lint: $(STAMP) ## Check format, style, types and import contracts.
	@$(BIN)/ruff format --check $(CHECKED)
	@$(BIN)/ruff check $(CHECKED)
	@$(BIN)/basedpyright
	@$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(STAMP) ## Format and fix what can be fixed.
	@$(BIN)/ruff format $(CHECKED)
	@$(BIN)/ruff check --fix $(CHECKED)

.PHONY: docs
docs: $(STAMP) ## Write docs/config.md from the schema.
	@$(BIN)/python -m maxtext.config.docs > $(VENV)/config.md
	@mkdir -p docs && mv $(VENV)/config.md docs/config.md

.PHONY: golden
golden: $(STAMP) ## Write the tables of tests/golden anew.
	@$(BIN)/python tests/golden/tables.py

.PHONY: constraints
constraints: $(STAMP) ## Pin the newest packages that pyproject.toml allows.
	@$(BIN)/python -m uv pip compile pyproject.toml --extra dev --universal --python-version 3.12 \
	  --upgrade --no-header --no-annotate --quiet -o constraints.txt
	@$(BIN)/python -m uv pip compile pyproject.toml --extra vllm-dev --python-version 3.12 \
	  --python-platform x86_64-manylinux_2_31 --upgrade --no-header --no-annotate --quiet -o constraints-vllm.txt

.PHONY: clean
clean: ## Remove caches and builds, not .venv and not output/.
	@rm -rf .cache .pytest_cache .ruff_cache .import_linter_cache dist build
