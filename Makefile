# `make bench` measures HEAD and publishes the history; `make test` runs the checks that take minutes, `make test-slow` the
# others. All set up what they need below this folder, in .venv/ and .asv/, and the demonstration data in the user's cache;
# `make clean` removes the former. As root with apt, the tests also install a browser and libraries that some of them need
# (tests/system_packages.py).

PYTHON ?= python3
BIN := .venv/bin
# asv's pip, too, leaves compiling to the first import: most modules of large packages are never imported.
export PIP_NO_COMPILE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_RETRIES := 10
# Into the environments, even if pip's configuration says `user = true`.
export PIP_USER := 0
# Ends make, unless the Python is one that the packages support.
define supported
$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || \
	{ echo "Python 3.11 to 3.13 is needed: name one, as in make test PYTHON=python3.13" >&2; exit 2; }
endef
# Makes the environment, unless it is there, and installs packages; says every five seconds that it still does.
define install
@$(BIN)/python -m pip --version > /dev/null 2>&1 || { $(supported); $(PYTHON) -m venv --clear .venv; }
sh .ci/busy "Installing $(1) into .venv" $(BIN)/python -m pip install --quiet -c .ci/constraints.txt $(2)
endef
# A test that kills its process is a failure; with another process it would be run again, and again.
WORKERS := --numprocesses 2 --max-worker-restart 0 --dist loadfile --no-loadscope-reorder
# The time limit of tests that take minutes on purpose, or wait for a network.
LONG := --override-ini faulthandler_timeout=1800
# Reasons for skipped tests, from all runs of pytest; printed at the end.
SKIPS := .asv/skips.jsonl
PYTEST := $(BIN)/python -m pytest -p tests.skips --skips $(SKIPS) --durations 30 --durations-min 5

.PHONY: bench bench-full compare-commits power peers gpu preview test test-slow torture docs package clean clone \
	published

bench: clone .venv/asv
	$(BIN)/python -m benchmarks.bench

# Every suite and axis, for hours; after an interruption, another call goes on.
bench-full: clone .venv/asv
	$(BIN)/python -m benchmarks.bench --profile full

# make compare-commits A=main B=HEAD: says if B is slower. Exit code 2 (make's own) if it is, or if the commits cannot be
# compared; the last lines say which.
compare-commits: clone .venv/bench
	$(BIN)/python -m benchmarks.compare_commits $(A) $(B) $(COMPARE)

power: clone .venv/bench
	$(BIN)/python -m benchmarks.studies.power $(POWER)

peers: .venv/bench
	$(BIN)/python -m benchmarks.peers $(PEERS)

# Needs a CUDA device, and a torch that can use it: the tests of it, then benchmarks/studies/results/gpu-DEVICE.json.
gpu: .venv/test
	$(BIN)/python -m pytest -m cuda
	$(BIN)/python -m benchmarks.studies.gpu --save

preview: published .venv/asv
	$(BIN)/asv preview

test: .venv/test
	@$(BIN)/python -m tests.system_packages
	@rm -f $(SKIPS)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/asv check --environment "existing:$(CURDIR)/$(BIN)/python"
	$(BIN)/python -m benchmarks.evidence --check
	$(PYTEST) $(WORKERS) -m "not slow and not alone"
	@$(BIN)/python -m tests.skips $(SKIPS)

# Whole comparisons, trainings and faults; with nothing beside them, tests that measure: asv over real commits; the quick
# tests that need no torch, with the oldest and the newest other Python of this machine.
test-slow: .venv/test
	@$(BIN)/python -m tests.system_packages
	@rm -f $(SKIPS)
	$(PYTEST) $(WORKERS) $(LONG) -m "slow and not alone"
	$(PYTEST) $(LONG) -m alone
	$(BIN)/python -m tests.other_pythons
	@$(BIN)/python -m tests.skips $(SKIPS)

# Every promise under kills, full disks, bad files and hostile input, as often as docs/results.md says. A selection of it
# has another file: make torture TORTURE="-k image --counts mine.json".
torture: .venv/test
	$(BIN)/python -m pytest tests/torture --torture $(WORKERS) $(LONG) --counts $(COUNTS) $(TORTURE)
COUNTS = benchmarks/studies/results/torture.json

# The site, in docs/_build/html; any warning is an error.
docs: .venv/test
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# sdist and wheel, in dist/.
package: .venv/test
	rm -rf dist
	$(BIN)/python -m build --installer pip --outdir dist .

clean:
	rm -rf .venv .asv build dist docs/_build docs/api/generated *.egg-info

# What measures commits needs them, and an archive has none.
clone:
	@test -e .git || \
		{ echo "Commits are measured in a clone made by git; this folder is not one: clone the repository." >&2; exit 2; }
	@git rev-parse --verify HEAD > /dev/null

published:
	@test -f .asv/html/index.html || \
		{ echo "Nothing is published here yet: make bench measures HEAD, and publishes the pages." >&2; exit 2; }

# Each has what those before it have: they are touched, too, so that none is installed again.
.venv/asv: .ci/asv.txt .ci/constraints.txt
	$(call install,asv,--requirement .ci/asv.txt)
	@touch .venv/asv

.venv/bench: .ci/asv.txt .ci/constraints.txt pyproject.toml
	$(call install,what the benchmarks need,--editable '.[bench]')
	@touch .venv/asv .venv/bench

.venv/test: .ci/asv.txt .ci/constraints.txt pyproject.toml
	$(call install,what the tests need,--editable '.[test]')
	@touch .venv/asv .venv/bench .venv/test

# Another Python than that of the environment, if it is named, makes the environment anew.
ifneq ($(origin PYTHON),file)
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
.venv/asv .venv/bench .venv/test: .venv/lib/python$(VERSION)

.venv/lib/python$(VERSION):
	@$(supported)
	$(PYTHON) -m venv --clear .venv
endif
