# The commands of the README. Everything lives in .venv; nothing is installed outside it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PATH := $(abspath $(BIN)):$(PATH)
# Two ranks on two cores with two threads each fight over the cores.
export OMP_NUM_THREADS ?= 1
export HF_HUB_OFFLINE ?= 1

.PHONY: help install quickstart test test-unit test-integration test-kube test-kube-long kube-lab-install test-long lint format schema \
        bench-overhead bench-heartbeats bench-startup bench-trl bench-serving bench-checkpoint bench-recovery bench-data chaos-long inject-long preflight-long bench-calibrate bench-search bench-planner bench-doctor-long runbooks down clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 20

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==0.13.9

# Two stamps: packages change with the pins, ops only with torch and DeepSpeed. Compiled here, or every process would
# compile again where PYTHONDONTWRITEBYTECODE is set or the folder is read-only, as in a pod.
$(VENV)/.installed: $(BIN)/uv pyproject.toml constraints.txt
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt --editable '.[train,serve,kube,dev]'
	touch $@

$(VENV)/.ops: $(VENV)/.installed
	$(BIN)/python -m warpbeam.train.ops
	touch $@

install: $(VENV)/.ops   ## .venv from the pinned set, DeepSpeed's CPU ops built
	@echo "installed in $(VENV); \`source $(VENV)/bin/activate\` puts warpbeam on your PATH"

quickstart: install  ## train, checkpoint, export and serve a small model on this machine
	$(BIN)/python -m jobs.quickstart

test: test-unit test-integration  ## the suite of every change

test-unit: install
	$(BIN)/python -m pytest tests/unit -q -n auto

test-integration: install
	$(BIN)/python -m pytest tests/integration -q -m "not long" --durations=15

kube-lab-install: $(VENV)/.installed  ## the programs of the Kubernetes laboratory, from Debian and Go (15 minutes once, root)
	$(BIN)/python -m tests.kube.lab.programs

test-kube: install   ## manifests and runs on a real API server, three nodes and KubeRay (root; after kube-lab-install)
	$(BIN)/python -m pytest tests/kube -q -m "not long" --durations=15

test-kube-long: install  ## the rest of the laboratory's proofs, with a table (20 minutes)
	WARPBEAM_REQUIRE_KUBE=1 $(BIN)/python -m pytest tests/kube -q -m long --durations=0

test-long: install   ## the longest proofs, outside CI
	$(BIN)/python -m pytest tests -q -m long --ignore tests/kube

inject-long: install  ## every fault that the doctor must name, with real processes (half an hour, root for some)
	$(BIN)/python -m pytest tests/integration/test_inject.py tests/integration/test_monitor.py -q --durations=20

chaos-long: install  ## N=50 faults in one run on a cluster of two nodes, with a table (half a minute each)
	$(BIN)/python -m tests.integration.chaos $(or $(N),50) $(if $(SEED),--seed $(SEED))

bench-overhead: install  ## steady tokens/s of the whole path beside the bare engine (a quiet machine, 5 minutes)
	$(BIN)/python -m tests.benchmarks.overhead

bench-heartbeats: install  ## what watching costs a rank, timed directly (a minute)
	$(BIN)/python -m tests.benchmarks.heartbeats

bench-startup: install  ## from command to first step, beside a naive script
	$(BIN)/python -m tests.benchmarks.startup

bench-trl: install  ## useful tokens/s beside TRL (makes .venv-trl)
	$(BIN)/python -m tests.benchmarks.trl

bench-serving: install  ## served tokens/s beside generate
	$(BIN)/python -m tests.benchmarks.serving

bench-checkpoint: install  ## what a save costs the loop; upload and restore beside boto3 (3 minutes)
	$(BIN)/python -m tests.benchmarks.checkpoint

bench-recovery: bench-checkpoint  ## from a killed rank to the next step, beside a naive script; resharding (10 minutes)
	$(BIN)/python -m tests.benchmarks.beside
	$(BIN)/python -m tests.benchmarks.recovery

bench-data: install  ## packing, reading, and finding step 10 million in 1e8 rows
	$(BIN)/python -m tests.benchmarks.data_path

preflight-long: install  ## 16 ranks, one fault at a time: who is named, and how soon; a Ray cluster and the gate (root, 10 minutes)
	$(BIN)/python -m tests.integration.preflight_drill
	$(BIN)/python -m pytest tests/integration/test_preflight_ray.py -q -m long

bench-calibrate: install  ## does the first CPU run predict the second? (3 minutes)
	$(BIN)/python -m tests.benchmarks.planner_calibrate

bench-search: install  ## how long choosing among 10,000 configurations takes
	$(BIN)/python -m tests.benchmarks.planner_search

bench-planner: install  ## how well the plan predicts 1,024 published runs, beside two baselines
	$(BIN)/python -m tests.benchmarks.planner_accuracy

bench-doctor-long: install  ## MB/s and peak memory of the doctor on GB=10 of logs of 16,384 ranks, beside plain re
	$(BIN)/python -m tests.benchmarks.doctor_speed --gigabytes $(or $(GB),10)

runbooks: $(VENV)/.installed  ## infra/runbooks/ from the doctor's rules
	$(BIN)/python -m warpbeam.doctor.runbooks infra/runbooks

lint: $(VENV)/.installed  ## format, lint, types, who imports whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

down: $(VENV)/.installed  ## stop the quickstart's servers (its data stays)
	$(BIN)/warpbeam down

clean: down  ## remove the environments; runs and models stay in WARPBEAM_HOME (~/.warpbeam)
	rm -rf $(VENV) .venv-trl
