# `make` lists the targets. They need make, git and Python 3.11 or newer.

VENV     := .venv
BIN      := $(VENV)/bin
DATA_DIR ?= data
# Interpreter of the virtual environment. If empty, .ci/make-venv uses the first one that is new enough.
PYTHON   ?=
# Branch coverage: make test COVERAGE=--cov. It takes 1.5 times as long.
COVERAGE ?=
# How many tests run at once. Half of the time a test of a process waits for it, so `make test` has two for each
# processor. JOBS=0 runs them one after the other in one process, for use with a debugger.
JOBS     ?=
CORES    := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
ONE_EACH  = --numprocesses $(or $(JOBS),$(CORES))
TWO_EACH  = --numprocesses $(or $(JOBS),$(shell expr 2 '*' $(CORES)))
# Further arguments for the program that a target starts: make run ARGS='--sync never'
ARGS     ?=

PIP      := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUNTIME  := requirements/build.txt requirements/runtime.txt
DEV      := requirements/dev.txt
COPY     := build/compiled
# The folders of tests that start processes, or play faults for a long time.
NOT_QUICK := browser clients compat faults integration postgres
PROJECT  := delayd tests benchmarks

# Each start would compile the daemon from its source if Python kept no bytecode: `make run`, and hundreds of tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv run compiled check test test-compiled test-faults test-clients mutants lint format lock screenshots vendor bench report bench-line bench-wheel bench-http bench-keys bench-groups bench-passes bench-scrape bench-neighbours bench-client bench-push bench-instructions bench-soak bench-two-machines bench-outbox clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# A stamp is newer than its requirements when they are installed. The locks name every package, so pip looks for no
# dependency of its own (--no-deps): pip 23 would want a newer release of one that another package asks for with an
# extra, and find that it has no hash. The project itself is installed editable and without build isolation, because
# its build backend is locked too.

$(BIN)/python:
	@.ci/make-venv $(VENV) $(PYTHON)

$(VENV)/.runtime: $(RUNTIME) pyproject.toml | $(BIN)/python
	$(PIP) install --no-deps --require-hashes $(addprefix --requirement ,$(RUNTIME))
	$(PIP) install --no-build-isolation --no-deps --editable .
	@$(BIN)/python -m compileall -q delayd
	@touch $@

$(VENV)/.dev: $(DEV) $(VENV)/.runtime
	$(PIP) install --no-deps --require-hashes --requirement $(DEV)
	@touch $@

venv: $(VENV)/.dev ## set up .venv for development

$(VENV)/.compiled: requirements/compiled.txt | $(VENV)/.runtime
	$(PIP) install --no-deps --require-hashes --requirement requirements/compiled.txt
	@touch $@

# The compiled copy is used while it is newer than every source.
run: $(VENV)/.runtime ## start the daemon on DATA_DIR (default ./data); ARGS are passed to it; compiled after make compiled
	@if [ -e $(COPY)/.compiled ] && [ -z "$$(find delayd -name '*.py' -newer $(COPY)/.compiled)" ]; then \
		export PYTHONPATH=$(CURDIR)/$(COPY); \
	fi; exec $(BIN)/delayd serve --data-dir $(DATA_DIR) $(ARGS)

# Python would prefer extension modules to the sources beside them, so the checkout itself gets none.
compiled: $(VENV)/.compiled ## compile a copy of this checkout with mypyc, in build/compiled; needs a C compiler
	@$(BIN)/python .ci/compile.py $(COPY)

# What plays in memory and says within a minute that something is wrong: without long walks, each byte and each failing
# call, and with each fact on the engine and on one wire.
check: lint ## lint, and run the quick ones of the tests that play in memory: what to run while you work
	$(BIN)/python -m pytest $(ONE_EACH) --dist worksteal $(addprefix --ignore tests/,$(NOT_QUICK)) \
		-m 'not process and not thorough' $(ARGS) tests

# In a fresh clone one process prepares the assertions of all tests, which takes it ten seconds, before each would.
test: $(VENV)/.dev ## run the tests; ARGS are passed to pytest
	@.ci/debian-packages
	@.ci/axe-core
	@ls tests/core/__pycache__/*-pytest-*.pyc >/dev/null 2>&1 || $(BIN)/python -m pytest --collect-only --quiet >/dev/null || true
	$(BIN)/python -m pytest $(TWO_EACH) --dist worksteal $(COVERAGE) $(ARGS)

# What is compiled, and what runs on it.
test-compiled: $(VENV)/.dev compiled ## run the tests of what is compiled in the compiled copy
	@.ci/debian-packages
	cd $(COPY) && PYTHONPATH=$(CURDIR)/$(COPY) $(CURDIR)/$(BIN)/python -m pytest $(ONE_EACH) --dist worksteal \
		$(or $(ARGS),tests/core tests/line tests/journal tests/http tests/faults tests/compat tests/test_durations.py \
			tests/test_moments.py tests/net/test_deadlines.py)

# The long form of the tests in tests/faults, the walks and models of core, journal, line, http and schedules with many
# seeds, and the OpenAPI document with all values of its largest bodies. Tests that measure time run one after the other
# in one process, all others where there is room. REPORT gets the table of the runs.
test-faults: $(VENV)/.dev ## run the long fault suite and print a table of the runs; REPORT=FILE keeps it
	@.ci/debian-packages
	$(BIN)/python -m pytest tests/faults tests/core tests/journal tests/line tests/http tests/schedules \
		tests/test_snapshots.py tests/test_commit_trouble.py tests/integration/test_contract.py \
		tests/integration/test_http_crash.py tests/compat/test_differential.py \
		$(ONE_EACH) --dist loadgroup --long --timeout 7200 \
		$(if $(REPORT),--fault-report $(REPORT)) $(ARGS)

mutants: $(VENV)/.dev ## break the code in places drawn from a seed, and print what no test notices; ARGS='ROOM… --count N'
	@nice -n 19 $(BIN)/python -m tests.mutants $(ARGS)

lint: $(VENV)/.dev ## ruff check, ruff format --check, mypy --strict
	$(BIN)/ruff check $(PROJECT)
	$(BIN)/ruff format --check $(PROJECT)
	$(BIN)/mypy --strict $(PROJECT)

format: $(VENV)/.dev ## fix what ruff can fix and format the code
	$(BIN)/ruff check --fix $(PROJECT)
	$(BIN)/ruff format $(PROJECT)

lock: ## update requirements/*.txt from pyproject.toml
	@.ci/lock-requirements $(PYTHON)

screenshots: $(VENV)/.dev ## take the pictures of docs/dashboard.md again; needs chromium
	@.ci/debian-packages
	$(BIN)/python -m tests.browser.screenshots

vendor: ## fetch the charting library of the dashboard again, if it is what it was; needs npm
	@.ci/vendor

bench: $(VENV)/.peers compiled ## measure everything that the report shows, and keep the results
	@.ci/debian-packages
	$(BIN)/python -m benchmarks run --results benchmarks/results $(ARGS)

report: $(VENV)/.dev ## make docs/benchmarks.md, its plots and the figures of README.md of benchmarks/results
	$(BIN)/python -m benchmarks report $(ARGS)

bench-line: $(VENV)/.dev ## measure the line protocol against beanstalkd
	@.ci/debian-packages
	$(BIN)/python -m benchmarks run servers --only subject=delayd --only subject=beanstalkd $(ARGS)

bench-wheel: $(VENV)/.dev ## measure the timing wheel against its rivals; compiled too after make compiled
	$(BIN)/python -m benchmarks run wheel $(ARGS)

bench-http: $(VENV)/.dev ## measure the HTTP API against a bare aiohttp handler
	$(BIN)/python -m benchmarks run http $(ARGS)

bench-keys: $(VENV)/.dev ## measure jobs with keys against jobs without
	$(BIN)/python -m benchmarks run keys $(ARGS)

bench-groups: $(VENV)/.dev ## measure what groups of jobs cost, and that one with many jobs does not hold up the others
	$(BIN)/python -m benchmarks run groups $(ARGS)

bench-passes: $(VENV)/.dev ## measure how long operations on two million jobs delay other clients
	$(BIN)/python -m benchmarks run passes $(ARGS)

bench-scrape: $(VENV)/.dev ## measure how long a scrape of 10,000 topics delays other clients
	$(BIN)/python -m benchmarks run scrape $(ARGS)

bench-neighbours: $(VENV)/.dev ## measure how long the others wait for one client that does something big
	$(BIN)/python -m benchmarks run neighbours $(ARGS)

bench-client: $(VENV)/.dev ## measure the Python client beside the load generator, greenstalk and aiohttp
	$(BIN)/python -m benchmarks run client $(ARGS)

bench-celery: $(VENV)/.dev ## measure Celery on delayd beside Redis and RabbitMQ
	@.ci/debian-packages
	$(BIN)/python -m benchmarks run celery $(ARGS)

bench-push: $(VENV)/.dev ## measure deliveries of due jobs against a bare aiohttp client
	$(BIN)/python -m benchmarks run push $(ARGS)

bench-instructions: $(VENV)/.dev ## count the instructions of one command, with valgrind
	$(BIN)/python -m benchmarks.instructions $(ARGS)

$(VENV)/.peers: requirements/peers.txt $(VENV)/.dev
	$(PIP) install --no-deps --require-hashes --requirement requirements/peers.txt
	@touch $@

# npm takes exactly what the lock names, by its hash, from whichever registry it is configured for.
build/clients/.installed: tests/clients/package.json tests/clients/package-lock.json
	@mkdir -p build/clients && cp $^ build/clients
	@command -v npm >/dev/null && npm ci --prefix build/clients --ignore-scripts --no-audit --no-fund --silent && touch $@ \
		|| echo 'npm is missing, or installs nothing: the clients in TypeScript and JavaScript are skipped.'

$(VENV)/.clients: requirements/clients.txt $(VENV)/.dev
	$(PIP) install --no-deps --require-hashes --requirement requirements/clients.txt
	@touch $@

test-clients: $(VENV)/.clients build/clients/.installed ## have clients of other languages work, and those made of the OpenAPI document; needs npm
	@.ci/debian-packages languages
	$(BIN)/python -m pytest --numprocesses 0 tests/clients $(ARGS)

bench-two-machines: $(VENV)/.peers ## measure the log in PostgreSQL beside files, a table of jobs in SQL, and procrastinate
	$(BIN)/python -m benchmarks run two_machines $(ARGS)

bench-outbox: $(VENV)/.dev ## measure how fast the outbox is emptied, and how long a lone row takes
	$(BIN)/python -m benchmarks run outbox $(ARGS)

bench-soak: $(VENV)/.dev ## load a daemon at half of its peak with a mix of everything, for an hour
	$(BIN)/python -m benchmarks.soak --results benchmarks/results $(ARGS)

clean: ## remove what make and the tools created, but not the data directory
	rm -rf $(VENV) build .lock-venv .coverage .coverage.* htmlcov dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find $(PROJECT) -name __pycache__ -type d -prune -exec rm -rf {} +
