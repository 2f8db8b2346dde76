# `make demo` and `make test` install their environment. `make help` lists all targets.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV ?= .venv
# Cores of the demo: all, but at most eight, because four small plates cannot use more.
CORES ?= $(shell n=$$(nproc); echo $$((n < 8 ? n : 8)))
# Five workers on two cores, because some wait for Slurm, Snakemake, or kernels that others compile.
TEST_WORKERS ?= 5
PYTEST_ARGS ?=
# Threads of BLAS spin while they wait: here they take six times the processor seconds of one.
PYTEST = OPENBLAS_NUM_THREADS=1 python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations 25 $(PYTEST_ARGS)
TEST_LOCK := test

DEMO_CONFIG := config/demo.yaml
DEMO_OUT = $(shell sed -nE "s/^outdir:[[:space:]]*[\"']?([^\"'#[:space:]]+).*/\1/p" $(DEMO_CONFIG))
SNAKEFILES := Snakefile workflow

BIN := $(abspath $(VENV))/bin
WITH_VENV := PATH="$(BIN):$$PATH"
PIP := "$(BIN)/python" -m pip --disable-pip-version-check --no-input
HASHED := install -qq --no-build-isolation --no-compile --require-hashes
# Bytecode of the packages on all cores: pip compiles on one, for half of its time. Packages contain
# templates that are no Python: like pip, ignore them.
COMPILE := "$(BIN)/python" -m compileall -qq -j 0 "$(VENV)/lib" src >/dev/null || true

.PHONY: help
help: ## List the targets
	@sed -nE 's/^([a-z0-9-]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 15

.PHONY: demo
demo: env ## Build the demo atlas from four simulated plates
	@$(WITH_VENV) snakemake --cores $(CORES) --configfile $(DEMO_CONFIG)
	@$(WITH_VENV) snakemake --quiet --configfile $(DEMO_CONFIG) --report "$(DEMO_OUT)/snakemake-report.html"
	@for file in atlas.zarr figures/umap/cell_line.png report.html explore.html snakemake-report.html; do \
	  [[ -e $(DEMO_OUT)/$$file ]] || { echo "The demo did not make $(DEMO_OUT)/$$file" >&2; exit 1; }; \
	done
	@printf '\nThe demo is ready:\n'
	@printf '  %-17s $(DEMO_OUT)/%s\n' \
	  atlas atlas.zarr \
	  'UMAP picture' figures/umap/cell_line.png \
	  report report.html \
	  explorer explore.html \
	  'Snakemake report' snakemake-report.html

.PHONY: reproduce
reproduce: env ## Build an atlas again from its record: make reproduce ATLAS=atlas.zarr DIRECTORY=new
	@$(WITH_VENV) python -m scatlas.workflow.reproduce "$(ATLAS)" --directory "$(DIRECTORY)"

.PHONY: test
test: test-env ## Run every test, but for those of the week
	@$(WITH_VENV) $(PYTEST)

.PHONY: test-weekly
test-weekly: test-env ## Run the long tests: scanpy's whole suite, new damages and layouts, notebooks, pages in Firefox
	@$(WITH_VENV) SCATLAS_HYPOTHESIS=random $(PYTEST) -m "weekly or examples"

.PHONY: test-scanpy112
test-scanpy112: ## Run the parity tests with scanpy 1.12, if there is a Python 3.12 or 3.13
	@envs/create.sh .venv-scanpy112
	@.venv-scanpy112/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 12))' || \
	  { rm -rf .venv-scanpy112; echo 'scanpy 1.12 needs Python 3.12: install it, or pass PYTHON=/path/to/python3.12' >&2; exit 1; }
	@$(MAKE) --no-print-directory VENV=.venv-scanpy112 TEST_LOCK=test-scanpy112 test PYTEST_ARGS='tests/parity $(PYTEST_ARGS)'

.PHONY: test-versions
test-versions: ## Run the README's commands with the lowest versions, then with the newest
	@.ci/versions lowest-direct
	@.ci/versions highest

.PHONY: docs
docs: test-env ## Build the documentation and run its notebooks: build/docs/index.html
	@$(WITH_VENV) python -m sphinx -W --keep-going -q -j auto -c docs . build/docs
	@echo 'The pages are ready: build/docs/index.html'

.PHONY: lint
lint: test-env ## Check style and types: Python, Snakemake rules, workflow conventions
	$(WITH_VENV) ruff check .
	$(WITH_VENV) ruff format --check .
	$(WITH_VENV) mypy
	$(WITH_VENV) snakefmt --check $(SNAKEFILES)
	$(WITH_VENV) snakemake --lint --configfile $(DEMO_CONFIG)

.PHONY: format
format: test-env ## Format Python and Snakemake files
	$(WITH_VENV) ruff check --fix .
	$(WITH_VENV) ruff format .
	$(WITH_VENV) snakefmt $(SNAKEFILES)

.PHONY: env
env: $(VENV)/.workflow-installed ## Create the environment of the workflow in .venv

.PHONY: test-env
test-env: $(VENV)/.tests-installed ## Add the packages of the tests to .venv

.PHONY: release
release: env ## Build sdist and wheel in build/dist, try them, and say what is left to do by hand
	@PYTHON="$(BIN)/python" .ci/release

.PHONY: lock
lock: ## Write the locks and conda environments of envs/
	envs/lock.sh

.PHONY: clean
clean: ## Remove caches; results and the environment stay
	rm -rf .pytest_cache .ruff_cache .hypothesis build docs/api/generated
	find src scripts tests bench envs -name __pycache__ -prune -exec rm -rf {} +

# -qq: pip prints errors alone. A recipe runs again if its stamp is older than its locks.
$(VENV)/.created:
	@envs/create.sh "$(VENV)"
	@touch "$@"

$(VENV)/.workflow-installed: envs/build.lock.txt envs/cpu.lock.txt pyproject.toml | $(VENV)/.created
	@echo 'Installing the packages of envs/cpu.lock.txt (the first time takes a minute or two)'
	@$(PIP) $(HASHED) -r envs/build.lock.txt
	@$(PIP) $(HASHED) -r envs/cpu.lock.txt
	@$(PIP) install -qq --no-build-isolation --no-deps --editable .
	@$(COMPILE)
	@touch "$@"

# The test lock has the versions of the workflow's lock, and more packages.
$(VENV)/.tests-installed: envs/$(TEST_LOCK).lock.txt $(VENV)/.workflow-installed
	@echo 'Installing the packages of $<'
	@$(PIP) $(HASHED) -r $<
	@$(COMPILE)
	@touch "$@"
