# Needs python3 >= 3.11 with venv. uv, where it is installed, only makes the set-up faster.
#   make demo    train three networks on embedded data and look at their heatmaps
#   make test    the tests; SLOW=1: with the slow ones, and Keras; FAST=1: the quick part alone, while one
#                edits; LOWEST=1: with the lowest versions that pyproject.toml allows, which needs uv
#   make check   format, lint, types, imports
#   make fuzz    damaged files for MINUTES (30) through the commands; goes on where it stopped
#   make bench   the benchmarks' key ratios beside those kept, under ten minutes; KEEP=1 keeps them,
#                ONLY="rollout store" takes these scripts
#   make kills   kill training, scores, heatmaps and caches, 20 times each, and go on
#   make release-check  build sdist and wheel, check both, run the commands from an empty environment
#   make audit   ask the index for known weaknesses of what is installed
#   make coverage  lines and branches of the package that make test reaches
#   make mutants  small faults in attention, methods and evaluate: which of them the tests find
#   make wasm    the live page's kernels, from C, by clang
#   make docs    the documentation, into outputs/site; runs the notebooks that have changed
#   make pictures  the pictures of README, documentation and Learn, after make demo
PYTHON ?= python3
CONSTRAINTS ?=
LOWEST ?=
LOW := $(and $(LOWEST),$(filter test,$(MAKECMDGOALS)))
VENV := .venv$(if $(LOW),-lowest)
WINDOWS := $(filter Windows_NT,$(OS))
BIN := $(VENV)/$(if $(WINDOWS),Scripts,bin)
EXE := $(if $(WINDOWS),.exe)
WORKERS ?= auto
MINUTES ?= 30
FAST ?=
SLOW ?=
KEEP ?=
ONLY ?=
QUICK := $(addprefix tests/,attention evaluate models render sequences training test_cores.py test_house.py)

UV := $(shell command -v uv 2>/dev/null)
ifneq ($(and $(LOW),$(if $(UV),,no)),)
  $(error LOWEST=1 needs uv, which resolves to the lowest versions: install uv)
endif
ifdef UV
  INSTALL = $(UV) pip install --python $(BIN)/python
else
  INSTALL = $(BIN)/python -m pip install --disable-pip-version-check
endif
INSTALL += $(if $(CONSTRAINTS),-c $(CONSTRAINTS)) $(if $(LOW),--resolution lowest-direct)

# Threads that wait for each other soon sleep: else they hold cores that other programs could use.
ifndef OMP_WAIT_POLICY
  export GOMP_SPINCOUNT ?= 2000
endif

.DEFAULT_GOAL := help
.PHONY: help demo test check coverage fuzz kills mutants bench release-check audit format wasm docs pictures clean

help:
	@sed -n 's/^#   //p' Makefile

$(BIN)/python$(EXE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vision_attn needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# Seen on two cores, with a fast network.
ABOUT = @echo 'Installing vision_attn and its libraries into $(VENV): 3 to 4 minutes with pip, less with uv; about 6 GB where torch brings its CUDA libraries'

$(VENV)/.installed: $(BIN)/python$(EXE) pyproject.toml
	$(ABOUT)
	$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python$(EXE) pyproject.toml
	$(ABOUT)
	$(INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed

# Without TensorFlow: the tests run Keras on torch.
$(VENV)/.installed-keras: $(VENV)/.installed-dev
	$(INSTALL) 'keras>=3.15'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/vision-attn demo

# Bytecode is kept, whatever the shell says: without it each process compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

# The second run is for tests that compile or export, which run-time type checks would break.
# The lowest versions warn of each other; that is no fault of this package.
PYTEST := $(BIN)/python -m pytest $(if $(LOW),-W default)
NO_SLOW := $(if $(SLOW),, and not slow)
# The quick part keeps no logs for the report of a failure: they take 7 % of its time.
NO_LOGS := -p no:logging
# The files that hold such tests: to import the others as well takes longer than many of these.
COMPILED = $(sort $(shell grep -rl --include='test_*.py' 'pytest[.]mark[.]compiled' tests))
test: $(VENV)/.installed-dev $(if $(SLOW),$(VENV)/.installed-keras)
ifneq ($(FAST),)
	OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) $(NO_LOGS) -m "not slow and not compiled and not browser" $(QUICK)
else
	OMP_NUM_THREADS=1 $(PYTEST) -n $(WORKERS) --dist loadgroup -m "not compiled$(NO_SLOW)"
	OMP_NUM_THREADS=1 VISION_ATTN_TYPECHECK=0 $(PYTEST) -n $(WORKERS) --maxprocesses 4 \
	  --dist loadgroup -m "compiled$(NO_SLOW)" $(COMPILED)
endif

# Then $(BIN)/python tests/fuzz/report.py puts the counts of both into docs/reliability.md.
fuzz: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)

# One thread, and CPU seconds: other programs change them little.
bench: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench.py $(if $(KEEP),--keep) $(ONLY)

kills: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/kills.py --times 20

# LOWEST=1: with the lowest versions that pyproject.toml allows, which needs uv.
release-check: $(VENV)/.installed-dev
	$(INSTALL) -e '.[release]'
	$(BIN)/python tests/release/check.py $(if $(LOWEST),--lowest,$(if $(CONSTRAINTS),--constraints $(CONSTRAINTS)))

# Known weaknesses of what is installed; those of tests/release/audit.txt are left out. Strict: what the
# index does not tell is an error. Else an audit that reached nothing would pass.
audit: $(VENV)/.installed-dev
	$(INSTALL) -e '.[release]'
	$(BIN)/python -m pip freeze --exclude-editable | \
	  $(BIN)/pip-audit --strict --no-deps --disable-pip -r /dev/stdin $$(sed -n 's/^\([A-Z][^ ]*\).*/--ignore-vuln \1/p' tests/release/audit.txt)

# Processes that tests start are measured too.
COVERED = $(BIN)/coverage run -m pytest -n $(WORKERS) --dist loadgroup
coverage: $(VENV)/.installed-dev
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(COVERED) -m "not compiled$(NO_SLOW)"
	OMP_NUM_THREADS=1 VISION_ATTN_TYPECHECK=0 $(COVERED) -m "compiled$(NO_SLOW)" $(COMPILED)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# Goes on where it stopped; delete outputs/mutants to draw from the code as it is now.
mutants: $(VENV)/.installed-dev
	$(BIN)/python tests/release/mutants.py

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

LIVE := vision_attn/pages/live
wasm:
	clang --target=wasm32 -O3 -msimd128 -nostdlib -ffreestanding -Wl,--no-entry -Wl,--export=__heap_base \
	  -Wl,--strip-all -o $(LIVE)/kernels.wasm $(LIVE)/kernels.c

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/notebooks.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(VENV)/.installed-dev
	$(BIN)/python docs/pictures/make.py
	$(BIN)/python docs/pictures/make.py moving
	$(BIN)/python docs/pictures/make.py live
	$(BIN)/python docs/pictures/make.py work
	$(BIN)/python docs/pictures/learn.py
	$(BIN)/python docs/pictures/tokens.py
	$(BIN)/python docs/pictures/rooms.py

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis build dist
