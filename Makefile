# Everything runs in .venv, made from the hashed lock in requirements/. `make help` lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
PYTEST := $(BIN)/pytest
FUZZ_EXECUTIONS ?= 100000
FUZZ_BYTES ?= 10000000
CRASH_IMAGES ?= 20000
CRASH_QUEUES ?= 1000
CRASH_KILLS ?= 100
STRESS_SECONDS ?= 60
SEEDS ?= 2000
CHAOS_SECONDS ?= 600
CHAOS_QUEUE_SECONDS ?= 300
CHAOS_SPARK_KILLS ?= 20
SUITE ?= kernels
ARGS ?=
PEERS ?= $(HOME)/.cache/seawall/peers
NATS_VERSION ?= v2.15.2

# The tests start hundreds of processes: each would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[36m%-14s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): requirements/dev.txt requirements/spark.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Seawall needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt -r requirements/spark.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(DOCS_READY): $(READY) requirements/docs.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@touch $@

.PHONY: setup
setup: $(READY) ## Create .venv with the pinned dependencies and compile the kernels
	@$(BIN)/python -m seawall.kernels.runtime.warm

.PHONY: demo
demo: setup ## A web shop writes, Spark and workers read and write back, all are killed, every record is checked: ARGS='--events N'
	$(BIN)/python examples/demo $(ARGS)
	$(BIN)/seawall doctor

.PHONY: test
test: setup ## Run the tests that a person waits for, with compiled kernels
	$(PYTEST) -q -n 2 --durations=20 -m 'not slow' $(ARGS) tests

.PHONY: test-slow
test-slow: setup test-compiled-slow test-checked test-python ## Run the slow tests, and the kernels in their other two modes

# The slow tests build the site, too.
.PHONY: test-compiled-slow
test-compiled-slow: setup $(DOCS_READY)
	$(PYTEST) -q -n 2 --durations=20 -m slow $(ARGS) tests

.PHONY: kernels-checked
kernels-checked: $(READY) ## Compile the kernels with bounds checks
	@NUMBA_BOUNDSCHECK=1 $(BIN)/python -m seawall.kernels.runtime.warm

.PHONY: test-checked
test-checked: setup kernels-checked ## Run the kernel tests with bounds checks
	NUMBA_BOUNDSCHECK=1 $(PYTEST) -q -n 2 tests/kernels

# What compiles the primitives is measured too: beside the tests, since it takes one core for more than a minute. Plain Python
# takes up to a minute for what kernels do in a second, hence the timeout.
.PHONY: test-python
test-python: setup ## Run the tests of the inner layers with kernels as plain Python; branch coverage must reach 95 %
	@rm -f .coverage .coverage.*
	@made=$$(mktemp -d) && trap 'kill $$! 2>/dev/null || true; rm -rf "$$made"' EXIT && \
		{ COVERAGE_FILE=$$made/coverage SEAWALL_KERNELS_CACHE_DIR=$$made $(BIN)/coverage run -m seawall.kernels.runtime.warm & } && \
		NUMBA_DISABLE_JIT=1 $(PYTEST) -q -n 2 --timeout=300 --cov=seawall --cov-report= \
		tests/core tests/wire tests/kernels tests/sequencer tests/broker tests/testing tests/sim/test_scenarios.py \
		tests/sim/test_sim.py::test_a_seed_is_always_the_same_run tests/io/test_disk_ring.py tests/io/test_uring.py \
		tests/engine/test_commit_cycle.py tests/engine/test_resident_commit.py tests/engine/test_transactions.py \
		tests/engine/test_watching.py tests/engine/test_aio_queues.py \
		--deselect tests/engine/test_aio_queues.py::test_a_waiting_claim_is_woken \
		tests/test_api_parity.py && \
		wait $$! && $(BIN)/coverage combine --quiet --append $$made/coverage
	$(BIN)/coverage report --fail-under=95 \
		--include='src/seawall/core/*,src/seawall/wire/*,src/seawall/api/*,src/seawall/kernels/*,src/seawall/testing/*'

.PHONY: lint
lint: $(READY) ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: type
type: $(READY) ## Check types
	$(BIN)/mypy

.PHONY: tidy
tidy: $(READY) ## Check sizes, docstrings, import direction and leftovers
	$(PYTEST) -q tests/test_tidy.py tests/test_imports.py

.PHONY: hostile
hostile: setup ## Attack served nodes: descriptors, memory, slow peers, forks, sizes at every bound, damaged files
	$(PYTEST) -q -n 2 $(ARGS) tests/hostile tests/client/test_forks.py

.PHONY: fuzz
fuzz: setup ## Run every parser on FUZZ_EXECUTIONS mutated inputs (100,000), and send FUZZ_BYTES bad ones (ten million) to a node
	$(BIN)/python tests/fuzz/run.py --executions $(FUZZ_EXECUTIONS) $(ARGS)
	$(BIN)/python tests/fuzz/run_network.py --bytes $(FUZZ_BYTES) $(if $(SEED),--seed $(SEED))

.PHONY: crash
crash: setup ## Crash the engine at CRASH_IMAGES points on a simulated disk (default 20,000), kill processes, damage files
	$(BIN)/python tests/crash/run.py --images $(CRASH_IMAGES) --queues $(CRASH_QUEUES) --kills $(CRASH_KILLS) --damage $(ARGS)

.PHONY: stress
stress: setup ## Write, read, delete and checkpoint at once for STRESS_SECONDS (default 60), every answer checked
	$(BIN)/python tests/crash/run.py --images 0 --kills 0 --stress $(STRESS_SECONDS) $(ARGS)

.PHONY: sim
sim: setup ## Run a simulated pod for SEEDS seeds (default 2,000), every promise checked; SEED=n runs one again
	$(BIN)/python tests/sim/run.py $(if $(SEED),--seed $(SEED),--seeds $(SEEDS) --planted) $(ARGS)

.PHONY: chaos
chaos: setup ## Kill, stop, end and cut off a served node under load for CHAOS_SECONDS (default 600), then CHAOS_SPARK_KILLS times (20) driver, executors and server under Spark, then workers and server under job queues for CHAOS_QUEUE_SECONDS (300); SEED=n runs one round again
	$(BIN)/python tests/chaos/run.py $(if $(SEED),--seed $(SEED),--seconds $(CHAOS_SECONDS)) $(ARGS)
	$(if $(SEED),,CHAOS_BAD_BYTES=10000000 $(PYTEST) -q tests/chaos/test_chaos.py::test_invalid_bytes_disturb_no_client_and_take_no_memory)
	$(if $(SEED),,$(BIN)/python tests/chaos/run_spark.py --kills $(CHAOS_SPARK_KILLS))
	$(if $(SEED),,$(BIN)/python tests/chaos/run_queues.py --seconds $(CHAOS_QUEUE_SECONDS))

.PHONY: spark-cluster
spark-cluster: setup ## Run all tests of Spark, batch, streams and the sink, with executors in processes of their own
	SPARK_TESTS_MASTER='local-cluster[2,1,1024]' $(PYTEST) -q $(ARGS) tests/spark

.PHONY: scenarios
scenarios: setup ## Store what the scenarios of the simulated pod do now as what they must do
	$(PYTEST) -q tests/sim/test_scenarios.py --write-scenarios

.PHONY: bench
bench: setup ## Run a benchmark suite: make bench SUITE=limits ARGS=--check
	$(BIN)/seawall bench $(SUITE) $(ARGS)

# Each is tried, also if another one cannot be had here.
.PHONY: peers
peers: $(READY) ## Fetch what `seawall bench peers` compares with into PEERS (~/.cache/seawall/peers): Kafka, Redis, NATS, their clients, RQ, Dramatiq, Celery
	@$(MAKE) --no-print-directory --keep-going peers-clients peers-kafka peers-redis peers-nats

.PHONY: peers-clients
peers-clients: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/peers.txt

.PHONY: peers-kafka
peers-kafka:
	@command -v java >/dev/null && command -v mvn >/dev/null || \
		{ echo "Kafka needs Java 17 or later, and Maven to fetch it. As root: apt-get install default-jre-headless maven"; exit 1; }
	@rm -rf $(PEERS)/kafka
	mvn --quiet --batch-mode --file requirements/kafka.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(PEERS)/kafka

.PHONY: peers-redis
peers-redis:
	@command -v redis-server >/dev/null || [ "$$(id -u)" = 0 ] || \
		{ echo "redis-server is missing. As root: apt-get install redis-server"; exit 1; }
	@command -v redis-server >/dev/null || apt-get install --quiet --yes --no-install-recommends redis-server

# Not from Debian 12, whose version cannot sync before each ack.
.PHONY: peers-nats
peers-nats:
	@command -v go >/dev/null || { echo "nats-server $(NATS_VERSION) is built with Go, which is missing: install it"; exit 1; }
	GOBIN=$(PEERS)/bin go install github.com/nats-io/nats-server/v2@$(NATS_VERSION)

.PHONY: docs
docs: $(DOCS_READY) ## Build the documentation as a site into build/docs; every warning is an error
	$(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet --fresh-env --doctree-dir build/doctrees \
		$(ARGS) docs build/docs
	@echo "The site is at build/docs/index.html"

.PHONY: wheel
wheel: $(READY) ## Build the wheel into dist/, with machine code for this platform and Python version
	@rm -rf build/kernels
	$(BIN)/python -m seawall.kernels.runtime.ship build/kernels
	SEAWALL_WHEEL_KERNELS=build/kernels $(BIN)/python -m build --wheel --no-isolation --outdir dist

.PHONY: lock
lock: $(READY) ## Renew the hashed locks in requirements/
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header \
		--no-annotate --no-emit-index-url --extra server --extra msgpack --extra dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header \
		--no-annotate --no-emit-index-url --extra spark -c requirements/dev.txt pyproject.toml -o requirements/spark.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header \
		--no-annotate --no-emit-index-url --extra docs -c requirements/dev.txt -c requirements/spark.txt pyproject.toml \
		-o requirements/docs.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-strip-extras --no-header \
		--no-annotate --no-emit-index-url --extra peers -c requirements/dev.txt -c requirements/spark.txt pyproject.toml \
		-o requirements/peers.txt

.PHONY: ci
ci: ## What a clean checkout must pass
	bash .ci/run

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf $(VENV) dist build .coverage .coverage.* .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
