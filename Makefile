# make run    the main job on this machine        make test   the tests
# make check  everything CI runs                  make clean  remove the environment
# make slow   tests too long for CI, one after the other
# make e2e    the service in a browser; it says what it needs, screenshots go to build/e2e
# make frameworks    each framework's recipe against its own parser, and small searches on CPUs, in
#             environments in build/frameworks; FRAMEWORKS="megatron sglang" for some of them
# make torches    every parallelism on 4 ranks with older versions of torch, in environments in
#             build/torches; TORCHES="2.6.0 2.8.0" for others. Each pair of parallelisms is tried
#             in one way, LAYOUTS=all tries every schedule with it. Ended, it goes on where it was.
# make clusters      searches on a real Slurm with two nodes on this machine, PSI/J on it, a Ray
#             cluster of two nodes, and TrainJobs for an API server, with a table of what was kept
#             and what was left; it needs root on Debian, and installs Slurm where there is none
# make gpu    proves cclsearch on this machine's GPUs in at most eight minutes, without a network;
#             the page is build/gpu/page.md. Without a GPU the same parts run small on the CPU.
#             make gpu-wheels, elsewhere, carries in build/wheels what its Python lacks.
# make docs   the documentation, in build/docs; make docs-serve shows it at http://127.0.0.1:8000,
#             make docs-links checks links to other sites, which needs a network
#
# TORCH=cpu|gpu|system: which build of torch the environment gets. The default is cpu where no
# NVIDIA driver answers, and gpu where one does. system uses the torch of the Python that runs make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported; pip would compile ten times as many.
INSTALL := $(BIN)/pip install --quiet --no-compile
TORCH ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo gpu || echo cpu)
TRIALS ?= 6

# Without it pytest rewrites the assertions of all tests in each worker, every time.
unexport PYTHONDONTWRITEBYTECODE

# Of the machine with the GPUs: its Python, and packages that it has besides torch.
WHEELS_PYTHON ?= 3.12
WHEELS_WITHOUT ?=
WHEELS := $(wildcard build/wheels/*.whl)
GPU_OUT ?= build/gpu

FRAMEWORKS ?= $(shell sed -n 's/^\[\([a-z]*\)\]$$/\1/p' benchmarks/frameworks/environments.toml)

TORCHES ?= 2.6.0 2.9.1 $(shell sed -n 's/^torch==//p' constraints.txt)
LAYOUTS ?= few

.PHONY: run test slow e2e frameworks torches clusters gpu gpu-wheels check lint types layers docs docs-serve docs-links clean

run: $(VENV)/.installed
	$(BIN)/cclsearch run --objective step_time --trials $(TRIALS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow"

slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m slow

e2e: $(VENV)/.installed-dev
	$(INSTALL) --editable ".[e2e]"
	$(BIN)/python -m pytest tests/e2e/journeys.py

frameworks: $(VENV)/.installed
	for name in $(FRAMEWORKS); do \
	    $(BIN)/python benchmarks/frameworks/run.py $$name || failed=1; \
	done; test -z "$$failed"

torches: $(VENV)/.installed
	$(BIN)/python benchmarks/torches.py $(TORCHES) $(if $(filter all,$(LAYOUTS)),--all)

clusters: $(VENV)/.installed-dev
	$(INSTALL) --editable ".[kubernetes,psij,ray]"
	command -v slurmctld slurmdbd > /dev/null \
	|| $(BIN)/python tests/clusters/slurm_cluster.py install --accounting
	$(BIN)/python -m pytest -s --timeout 1800 -p no:unraisableexception tests/clusters/*_jobs.py tests/clusters/*_searches.py

# Where wheels were carried nothing is installed, and PYTHON is the one that has torch.
gpu: $(if $(WHEELS),,$(VENV)/.installed)
	$(if $(WHEELS),$(PYTHON),$(BIN)/python) benchmarks/gpu/start.py --out $(GPU_OUT)

gpu-wheels: $(VENV)/.installed
	$(BIN)/python benchmarks/gpu/wheels.py --python $(WHEELS_PYTHON) --without $(WHEELS_WITHOUT)

check: lint types layers docs test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/docs

docs-links: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx --builder linkcheck --quiet docs build/links

docs-serve: docs
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory build/docs 8000

$(VENV)/bin/python:
	$(PYTHON) -m venv $(if $(filter system,$(TORCH)),--system-site-packages) $(VENV)

# A CPU build carries "+cpu" in its version. Where the package index has none, say how to get it
# and go on with the build that is there.
$(VENV)/.torch: constraints.txt | $(VENV)/bin/python
ifeq ($(TORCH),cpu)
	$(INSTALL) "$$(grep '^torch==' constraints.txt)+cpu" \
	|| { echo "No CPU build of torch in your package index; installing the default build." \
	     "To save gigabytes, add PyTorch's CPU index to pip (see pytorch.org, Get Started)."; \
	     $(INSTALL) --constraint constraints.txt torch; }
endif
ifeq ($(TORCH),gpu)
	$(INSTALL) --constraint constraints.txt torch
endif
	touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.torch
	$(INSTALL) --editable ".[builtin]"
	touch $@

$(VENV)/.installed-dev: pyproject.toml $(VENV)/.torch
	$(INSTALL) --editable ".[dev]"
	touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV)
