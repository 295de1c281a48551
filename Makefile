# Every target sets up its requirements in .venv; a stamp file prevents a second setup. `make` alone prints this help.
#   make run     start the broker on 127.0.0.1:5672, its page at http://127.0.0.1:15672, store in ./data   (ARGS="--port 5673"
#                passes flags on; ARGS=--mqtt with port 1883, SLOTMQ_MQTT__ANONYMOUS_USER=guest for clients of this machine
#                without a password); it compiles in the background for later starts, if there is a C compiler; SLOTMQ_COMPILE=0
#                leaves that out
#   make compile compile at once, for the next make run
#   make test    all tests on the compiled broker, in two processes, and those that need the interpreted one; named files in one
#                process (ARGS="-k routing" passes flags on). Without a C compiler all are interpreted
#   make test-interpreted   all tests on the interpreted broker; make torture begins with them
#   make packages   build an sdist, a wheel and what the Dockerfile makes, install them into fresh environments and use them
#   make lint    ruff, formatting, types, import contracts, what compiled code lacks, tasks without an owner, links of the documentation
#   make docs    the documentation as a site in ./site
#   make demo    336,776 flights through the broker, which is killed once during the run; ARGS=--help names all options
#   make demo-pipeline   the flights from a tap into a lake, queried and replayed by Spark
#   make demo-cluster    the flights through three nodes on a PostgreSQL from a wheel; one is killed, one frozen during the run
#   make demo-overlay    the flights through six brokers of an overlay, five of which are killed during the run
#   make demo-ui the flights through a broker whose page shows them: prints its address, runs until Ctrl-C
#   make bench   S1 to S10: CPU microseconds per message, latency, restart, memory, compared with RabbitMQ if it is installed;
#                twenty minutes, ARGS=--quick a few, ARGS="--only S1,S3" selects some
#   make bench-topics   the engines of the topic index; ten minutes, ARGS=--quick one
#   make bench-growth   cost of a message by the size of the broker, fairness, pauses and a soak; under 27 minutes
#   make bench-pipeline   the pipeline's jobs, compared with Spark's own reader and writer; ARGS=--quick
#   make bench-cluster    a cluster on a PostgreSQL from a wheel, compared with one broker; ARGS=--quick
#   make bench-overlay    the experiments of the Gryphon paper on brokers of this machine, and what a forwarded message costs;
#                under twelve minutes, ARGS=--quick two minutes
#   make torture the long tests       make fuzz the fuzz tests alone      make setup everything a developer needs

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
COMPILED := build/compiled
# PYTHONSAFEPATH keeps the sources of the working directory from being found before the compiled package.
PYTEST_COMPILED := PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/$(COMPILED):$(CURDIR) TEST_COMPILED=1 \
  $(BIN)/pytest -o pythonpath="$(COMPILED) ."

.PHONY: help setup run compile test test-interpreted packages lint docs format bench bench-topics bench-growth bench-pipeline bench-cluster bench-overlay demo demo-pipeline demo-cluster demo-overlay demo-ui torture fuzz
.DEFAULT_GOAL := help
.SUFFIXES:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup: $(VENV)/.stamp-dev
	@:

run: $(VENV)/.stamp-run
	@exec $(BIN)/python tools/compiled_run.py serve $(ARGS)

compile: $(VENV)/.stamp-run
	@$(BIN)/python tools/compiled_run.py compile

# Without a C compiler (exit code 3) all tests run interpreted.
test: $(VENV)/.stamp-dev
	@$(BIN)/python tools/compiled_build.py $(COMPILED); case $$? in \
	  0) cp tests/compiled/sitecustomize.py $(COMPILED) && $(PYTEST_COMPILED) -n auto -m "not torture and not interpreted" $(ARGS) && \
	     { $(BIN)/python -m pytest -n auto --interpreted $(ARGS) || [ $$? = 5 ]; };; \
	  3) exec $(BIN)/python -m pytest -n auto $(ARGS);; \
	  *) exit 2;; \
	esac

test-interpreted: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest -n auto $(ARGS)

packages: $(VENV)/.stamp-dev
	@$(BIN)/python -m tools.packages

lint: $(VENV)/.stamp-dev
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.native
	@$(BIN)/python -m tools.tasks
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/lint-site

docs: $(VENV)/.stamp-docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

format: $(VENV)/.stamp-dev
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/.stamp-bench
	@$(BIN)/python -m bench $(ARGS)

bench-topics: $(VENV)/.stamp-bench
	@$(BIN)/python -m bench topics $(ARGS)

bench-growth: $(VENV)/.stamp-bench
	@$(BIN)/python -m bench growth $(ARGS)

bench-pipeline: $(VENV)/.stamp-bench-pipeline
	@$(BIN)/python -m bench pipeline $(ARGS)

bench-cluster: $(VENV)/.stamp-bench-cluster
	@$(BIN)/python -m bench cluster $(ARGS)

bench-overlay: $(VENV)/.stamp-bench
	@$(BIN)/python -m bench overlay $(ARGS)

demo: $(VENV)/.stamp-demo
	@$(BIN)/python -m demo $(ARGS)

demo-pipeline: $(VENV)/.stamp-demo-pipeline
	@$(BIN)/python -m demo --show pipeline $(ARGS)

demo-cluster: $(VENV)/.stamp-demo-cluster
	@$(BIN)/python -m demo --show cluster $(ARGS)

demo-overlay: $(VENV)/.stamp-demo
	@$(BIN)/python -m demo --show overlay $(ARGS)

demo-ui: $(VENV)/.stamp-demo
	@$(BIN)/python -m demo --show page $(ARGS)

torture: test-interpreted
	@$(BIN)/python tools/compiled_build.py $(COMPILED); case $$? in \
	  0) cp tests/compiled/sitecustomize.py $(COMPILED) && exec $(PYTEST_COMPILED) -m torture --timeout=3600 $(ARGS);; \
	  3) exec $(BIN)/python -m pytest -m torture --timeout=3600 $(ARGS);; \
	  *) exit 2;; \
	esac

fuzz: $(VENV)/.stamp-dev
	@$(BIN)/python -m pytest -m fuzz $(ARGS)

# ---- setup: the first python that is new enough creates .venv; pip is quiet unless it fails ------------------------------

EXTRAS_run := [manage,compile]
EXTRAS_dev := [test,dev,demo,spark]
EXTRAS_quick := [test,compile]
EXTRAS_docs := [manage,docs]
EXTRAS_demo := [manage,demo]
EXTRAS_demo-pipeline := [manage,demo,spark]
EXTRAS_demo-cluster := [manage,demo-cluster]
EXTRAS_bench := [manage,compile,bench]
EXTRAS_bench-pipeline := [manage,bench,spark]
EXTRAS_bench-cluster := [manage,bench-cluster]

$(VENV)/.stamp-%: pyproject.toml
	@if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  for python in $(PYTHON) python3 python3.13 python3.12 python3.11 python3.14 python; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "SlotMQ needs Python 3.11 or newer and found none; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; \
	  fi; \
	  echo "setting up $(VENV) with $$($$found --version 2>&1) (once, about half a minute)" >&2; \
	  if ! said=$$($$found -m venv --clear $(VENV) 2>&1); then \
	    echo "$$found cannot make a virtual environment; on Debian and Ubuntu install python3-venv. It said: $$(echo "$$said" | tr '\n' ' ')" >&2; exit 1; \
	  fi; \
	fi
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-input --editable '.$(EXTRAS_$*)'
	@$(BIN)/python -m compileall -q broker  # makes the first start quick, too
	@touch $@ $(VENV)/.stamp-run
