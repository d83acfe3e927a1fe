# `make demo` and `make test` are all one needs on a fresh machine: they set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check slow sites flaky package docs audit browser clean

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/fedkin demo

test: $(READY) check browser
	$(BIN)/python -m pytest -n auto --dist worksteal

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The report's page is tested in a real browser; where there is none and none can be installed, those tests are skipped.
browser:
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	  { apt-get install -y -qq chromium || { apt-get update -qq && apt-get install -y -qq chromium; }; } >/dev/null 2>&1 || \
	  echo "chromium could not be installed: the browser tests will be skipped"

slow: $(READY)
	$(BIN)/python -m pytest -m slow

# Every fault of a real deployment over Flower: supernodes, client processes, the superlink and the server are killed
# and come back. About five minutes on an idle machine.
sites: $(READY)
	$(BIN)/python -m pytest -m sites tests/deploy

# The tests that start processes, a browser, Ray or Flower, several times and in random order. The number of a run is
# the seed of its order: `pytest -m processes --random-order-seed=3` repeats the order of the third.
TIMES ?= 10
flaky: $(READY) browser
	@failed=0; for run in $$(seq $(TIMES)); do \
	  echo "flaky: run $$run of $(TIMES)"; \
	  $(BIN)/python -m pytest -n auto --dist worksteal -m 'processes and not slow' --random-order-seed=$$run || \
	    failed=$$((failed + 1)); \
	done; echo "flaky: $$failed of $(TIMES) runs failed"; test $$failed = 0

# Known vulnerabilities of what is installed here; fails, and says so, where pip-audit's database cannot be reached.
audit: $(READY)
	$(BIN)/python scripts/audit.py

# What users install: a wheel and an sdist in dist/. The wheel must run the demo from a fresh environment and folder.
# dist/sbom.json (CycloneDX) lists every package of an installation for real sites (the extras flower and privacy), with
# its version and license.
package: $(READY)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && unset PYTHONPATH && mkdir "$$folder/empty" && \
	  here=$$(pwd) && wheel=$$(echo "$$here"/dist/*.whl) && install="install --quiet --disable-pip-version-check" && \
	  $(PYTHON) -m venv "$$folder/venv" && \
	  "$$folder/venv/bin/pip" $$install -c constraints.txt "$$wheel" && \
	  cd "$$folder/empty" && ../venv/bin/fedkin demo && \
	  ../venv/bin/python -c "from importlib import resources; assert (resources.files('fedkin') / 'py.typed').is_file()" && \
	  cd "$$here" && "$$folder/venv/bin/pip" $$install -c constraints.txt "$$wheel[flower,privacy]" && \
	  $(BIN)/cyclonedx-py environment --output-reproducible --of JSON -o dist/sbom.json "$$folder/venv/bin/python"

# The documentation as a site in site/: it can be read from the disk and searched without a network. Warnings are errors.
DOCS_READY := .venv/.docs-ready
$(DOCS_READY): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The documentation is in site/index.html"

clean:
	rm -rf .venv runs dist site
