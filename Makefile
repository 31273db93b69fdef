# Needs make and Python 3.11, 3.12 or 3.13; everything else is installed, pinned and hash-checked, into $(VENV).
#
#   make install     the virtual environment, with the project in it (again only when pyproject.toml or the pins change)
#   make demo        the demo: embedded data, no download
#   make test        the tests, without the slow ones
#   make slow        the slow tests
#   make typed       the core's quick tests with shapes and types checked as they run (jaxtyping and beartype)
#   make oldest      the core's quick tests with the oldest dependencies that pyproject.toml allows, in build/oldest
#   make newest      the same with the newest there are, in build/newest
#   make bench       the benchmark: proxbi and its peers, each in an environment of its own under build/bench
#   make docs        the site, into build/site; in an environment of its own, .venv-docs
#   make gallery     the examples in full, and their figures
#   make dist        the wheel and the source archive, checked, into dist
#   make lint        style, formatting and types
#   make format      fix style and formatting
#   make requirements    rewrite the pins after a change of dependencies; with UPGRADE=1, move every pin forward
#   make clean       remove the virtual environment and the caches
#
# PYTHON=... chooses the Python a new environment is made with, VENV=... its directory, ARGS=... adds to the command run.

VENV = .venv
DOCS_VENV = .venv-docs
BIN = $(VENV)/bin
PINS = requirements/all.txt
DOCS_PINS = requirements/docs.txt
RELEASE_PINS = requirements/release.txt
STAMP = $(VENV)/.installed
UNFINISHED = $(VENV)/.unfinished
PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input
PYTEST = $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal
UV = uv==0.13.7
UV_RUN = build/uv/bin/uv

# What a new or an old version of JAX or NumPy breaks first, in some minutes.
CORE_TESTS = $(addprefix tests/test_,$(addsuffix .py,contract minimize lower linear hypergradient regularizers problem \
  checkpoint saved datasets glm cleaning_estimator linear_model))

# The first that starts and is in range: a version manager's shim may exist and yet fail.
CANDIDATES = $(if $(PYTHON),'$(PYTHON)',python3.13 python3.12 python3.11 python3 python)
IN_RANGE = import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
define FIND_PYTHON
python=; for candidate in $(CANDIDATES); do \
  if "$$candidate" -c '$(IN_RANGE)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
done; \
if [ -z "$$python" ]; then \
  echo "proxbi needs Python 3.11, 3.12 or 3.13, and none of these is one that runs:" $(CANDIDATES)"; install one, or name it with 'make PYTHON=/path/to/python ...'." >&2; \
  exit 1; \
fi
endef

.DELETE_ON_ERROR:
.PHONY: help install demo test slow typed oldest newest bench docs gallery dist lint format requirements clean

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

install: $(STAMP)

# An environment whose last installation was cut short, or whose Python or pip no longer runs, is made anew.
$(STAMP): pyproject.toml $(PINS)
	@rm -f $@
	@if [ -e $(UNFINISHED) ] || ! $(BIN)/python -c 'import pip; $(IN_RANGE)' >/dev/null 2>&1; then \
	  $(FIND_PYTHON); \
	  echo "Making $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear $(VENV) || exit 1; \
	fi
	@touch $(UNFINISHED)
	@echo "Installing the pinned packages into $(VENV) (a minute or two the first time)"
	@$(PIP) install -qq --require-hashes -r $(PINS)
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@rm -f $(UNFINISHED)
	@touch $@

demo: install
	$(BIN)/proxbi demo $(ARGS)

test: install
	$(PYTEST) $(ARGS)

# pytest says 5 when nothing is marked slow.
slow: install
	$(PYTEST) -m 'slow and not hours' $(ARGS) || [ $$? -eq 5 ]

# Tests that pass arguments of wrong types on purpose are left out: the check finds them first.
typed: install
	$(PYTEST) --jaxtyping-packages=proxbi,beartype.beartype $(CORE_TESTS) -k 'not bad_ and not refused' $(ARGS)

oldest: RESOLUTION = lowest-direct
newest: RESOLUTION = highest
oldest newest: $(UV_RUN)
	@$(FIND_PYTHON); $(UV_RUN) venv --quiet --clear --python "$$(command -v "$$python")" build/$@
	$(UV_RUN) pip install --quiet --python build/$@/bin/python --resolution $(RESOLUTION) --editable '.[all,dev]'
	@$(UV_RUN) pip list --quiet --python build/$@/bin/python | grep -E '^(jax|numpy|equinox|optax|lineax|scikit-learn|pandas) '
	build/$@/bin/python -m pytest -q -n auto --maxprocesses 4 $(CORE_TESTS) $(ARGS)

bench: install
	$(BIN)/python benchmarks/bench $(ARGS)

# The same rules with other names: the site needs the library, to run its pages, and not the tools of the tests.
docs:
	@$(MAKE) --no-print-directory install VENV=$(DOCS_VENV) PINS=$(DOCS_PINS)
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/python -m mkdocs build $(ARGS)
	@echo "Open build/site/index.html"

gallery: install
	@for example in examples/[0-9]*.py; do echo "== $$example"; $(BIN)/python $$example $(ARGS) || exit 1; done

# What a release uploads: built from the source archive, so that nothing outside of it is needed.
dist:
	@rm -rf dist build/dist; $(FIND_PYTHON); "$$python" -m venv build/dist
	@build/dist/bin/python -m pip --disable-pip-version-check install -qq --require-hashes -r $(RELEASE_PINS)
	build/dist/bin/python -m build --no-isolation
	build/dist/bin/python -m twine check --strict dist/*

lint: install
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

format: install
	$(BIN)/python -m ruff check --fix
	$(BIN)/python -m ruff format

# One set for every supported Python and platform; pins stay where they are unless UPGRADE is set. The site and the
# release tools take the versions of the first set for what they share with it.
COMPILE = $(UV_RUN) pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest \
  --generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make requirements" \
  $(if $(UPGRADE),--upgrade)
requirements: $(UV_RUN)
	$(COMPILE) pyproject.toml --extra all --extra dev --output-file $(PINS)
	$(COMPILE) pyproject.toml --extra all --group docs --constraints $(PINS) --output-file $(DOCS_PINS)
	$(COMPILE) --group release --constraints $(PINS) --output-file $(RELEASE_PINS)

$(UV_RUN): Makefile
	@$(FIND_PYTHON); "$$python" -m venv --clear build/uv
	@build/uv/bin/python -m pip --disable-pip-version-check install -qq $(UV)

clean:
	rm -rf $(VENV) $(DOCS_VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks docs examples -name __pycache__ -type d -prune -exec rm -rf {} +
