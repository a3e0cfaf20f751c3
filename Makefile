# Every target does its own set-up: on a fresh clone `make test` is enough.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Two processes of one thread each: the tests' networks are too small for more. Each has half of the tests in their order, so that what
# a file or a folder caches is made once, and takes from the other what is left when it is done. Python keeps what it compiles, also where
# PYTHONDONTWRITEBYTECODE is set: the tests start many processes, each of which would compile the package, which takes a second.
TEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(RUN) -m pytest --numprocesses 2 --dist worksteal --durations 25 --durations-min 5
# Collecting all others takes as long again.
ACCELERATOR_FILES = $(shell grep --recursive --files-with-matches --extended-regexp 'mark\.(accelerator|emulated)' --include 'test_*.py' tests | sort)

.DEFAULT_GOAL := help
.PHONY: help install test test-slow test-exhaustive test-accelerator test-gpu test-slurm test-browser test-without-cuda measure compare compare-compile validate frontiers depth-record lint format docs figures report scoreboard sensitivity sync bench audit smoke clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {sub("%", "PAPER"); printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo '  PAPER of reproduce-PAPER: $(patsubst experiments/%/paper.yaml,%,$(wildcard experiments/*/paper.yaml))'
	@echo '  PAPER of train-PAPER:     $(patsubst experiments/%/trainings.yaml,%,$(wildcard experiments/*/trainings.yaml))'

install: $(STAMP)  ## make .venv with the exact versions of constraints.txt

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

test: $(STAMP)  ## run the tests that are not slow and need no GPU
	$(TEST)

test-slow: $(STAMP)  ## run the tests that need seconds each, but for those of `make test-accelerator`
	$(TEST) -m 'slow and not accelerator and not exhaustive and not emulated and not cuda and not slurm'

test-exhaustive: $(STAMP)  ## run all options on all networks, deep networks, longer trainings, slow tests of the contract on the CPU (hours)
	$(TEST) -m '(exhaustive or (slow and accelerator)) and not emulated and not cuda and not slurm'

test-accelerator: $(STAMP)  ## run the contract on an emulated GPU, whose streams are threads; needs a C++ compiler
	@if command -v c++ >/dev/null; then \
		PATH="$(CURDIR)/$(VENV)/bin:$$PATH" MEMBENCH_TEST_DEVICE=emulated $(TEST) -m '(accelerator or emulated) and not exhaustive' $(ACCELERATOR_FILES); \
	else echo 'test-accelerator is skipped: it needs a C++ compiler, such as g++'; test -z "$$CI"; fi

test-gpu: $(STAMP)  ## run the tests that need a GPU; fails where there is none
	$(RUN) -m membench.backends.self_test
	MEMBENCH_TEST_DEVICE=cuda $(RUN) -m pytest -m '(accelerator and not exhaustive) or cuda'

test-slurm: $(STAMP)  ## run sweeps on a Slurm cluster that is started here (Debian, Ubuntu); skips where it cannot be installed
	@.ci/install-slurm
	OMP_NUM_THREADS=1 KINETO_LOG_LEVEL=9 $(RUN) -m pytest -rs -m slurm

test-browser: $(STAMP)  ## open the pages and the app in headless Chromium (Debian); skips where it cannot be installed
	@.ci/install-chromium
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[app,browser]'
	OMP_NUM_THREADS=1 $(RUN) -m pytest -rs -m browser

test-without-cuda: $(STAMP)  ## predict under a torch that was not built for CUDA, and compare; skips where it cannot be installed
	.ci/without-cuda

smoke: $(STAMP)  ## install the wheel into a fresh environment and use it away from the checkout
	.ci/smoke

measure: $(STAMP)  ## measure every strategy on this machine's GPU; write results/measured/
	$(RUN) -m membench.backends.self_test
	$(RUN) -m membench measure
	$(RUN) -m membench measure task=limits budget=12GB

compare: $(STAMP)  ## measure other tools and every strategy on eight networks; write results/compare/ (hours on a CPU)
	-$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[peers]'
	$(RUN) -m benchmarks.compare --results results/compare

compare-compile: $(STAMP)  ## the same of torch.compile and four strategies, training alone; write results/compare_compile/ (three hours)
	$(RUN) -m benchmarks.compare --results results/compare_compile --modes training --strategies 'eager;auto;joint;capuchin' \
		--peers 'compile;compile, activation_memory_budget=0.5;compile, activation_memory_budget=0'

validate: $(STAMP)  ## predict what others measured on GPUs; write results/validation/ and paper_figs/validation/
	$(RUN) -m membench validate

frontiers: $(STAMP)  ## strategies under budgets, six networks on three cards; write results/frontiers/ and paper_figs/frontiers/
	$(RUN) -m membench frontier

depth-record: $(STAMP)  ## plan networks of up to 10,001 layers, run some on the CPU; write results/depth_record/ (half an hour)
	$(RUN) benchmarks/depth_record/run.py

lint: $(STAMP)  ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

format: $(STAMP)  ## apply ruff's fixes and its format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# Without --quiet, with which warnings are not counted, so that --strict passes.
docs: $(STAMP)  ## build the documentation site, build/site/index.html; a broken link or reference is an error
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

reproduce-%: $(STAMP)  ## run a paper's experiments; write results/, SCOREBOARD.md and paper_figs/
	$(RUN) -m membench reproduce $*

sensitivity: $(STAMP)  ## run each paper under every alternative to its choices too; write results/*/sensitivity.csv (half an hour)
	@for paper in $(patsubst experiments/%/paper.yaml,%,$(wildcard experiments/*/paper.yaml)); do \
		$(RUN) -m membench reproduce $$paper sensitivity=true || exit 1; done

train-%: $(STAMP)  ## train a paper's networks to accuracy (minutes); a run with a record is not run again
	OMP_NUM_THREADS=1 $(RUN) -m membench train $*

figures: $(STAMP)  ## redraw paper_figs/ from results/
	$(RUN) -m paper_figs

report: $(STAMP)  ## write outputs/report/index.html: a page per paper from results/ and paper_figs/
	$(RUN) -m membench report

scoreboard:  ## show how many of the papers' numbers come out
	@sed -n 's/\*\*//g; s/^## //p; /predicted numbers reproduced/p' results/SCOREBOARD.md
	@echo 'Every number that deviates, and why: results/SCOREBOARD.md'

sync: $(STAMP)  ## upload the W&B runs that were logged offline; needs `wandb login`
	WANDB_DIR=outputs $(RUN) -m wandb sync --yes

bench: $(STAMP)  ## measure membench itself; keep the ratios over commits in results/benchmarks/
	$(RUN) -m benchmarks

audit:  ## look the exact versions up among published vulnerabilities; needs a network
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	build/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

clean:  ## remove .venv and everything that is generated and not committed
	rm -rf $(VENV) outputs wandb build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
