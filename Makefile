# make demo | stack | test | lint | golden | bench | pictures | lock | pythons. Each sets up what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PORT ?= 9777
export PYTHON

.PHONY: help demo stack test faults lint golden bench pictures screenshots lock pythons clean
help:
	@echo "make demo      a simulated 8-GPU node at http://localhost:$(PORT)/ (PORT=... for another port)"
	@echo "make stack     a simulated node in trouble, Prometheus, the shipped rules, Alertmanager: until an alert arrives and on"
	@echo "make test      set up, lint and run all tests"
	@echo "make faults    throw faults at the real daemon at random, for ten minutes"
	@echo "make lint      ruff and mypy alone"
	@echo "make golden    rewrite the golden files, to be read as a diff"
	@echo "make bench     print the tables of benchmarks/"
	@echo "make dashboards write dashboards and rule files anew"
	@echo "make pictures  draw the pictures of the README and docs anew"
	@echo "make screenshots  pictures of the live page in Chromium"
	@echo "make lock      pin anew what the container image holds"
	@echo "make pythons   unit tests on every Python from 3.10 to 3.13 that is here"

demo:
	@sh .ci/venv $(VENV)
	@sh .ci/demo $(BIN) $(PORT)

# Also once, as a check: make stack STACK='--speed 2 --until-alert'
stack:
	@sh .ci/venv $(VENV)
	@ONLY='prometheus prometheus-alertmanager' sh .ci/tools
	@$(BIN)/python -m deploy.stack --port $(PORT) $(STACK)

test:
	@sh .ci/venv $(VENV) dev
	@sh .ci/tools
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@sh .ci/pytest $(BIN) -n 2 -m "not end_to_end"
	@sh .ci/pytest $(BIN) -m end_to_end
	@echo "make test: lint is clean and all tests passed; what each file holds stands in CONTRIBUTING.md"

# Faults at random for longer than `make test` does: OVERLAP_FAULT_SECONDS and OVERLAP_FAULT_SEED choose how long and which.
faults:
	@sh .ci/venv $(VENV) dev
	@OVERLAP_FAULT_SECONDS=$${OVERLAP_FAULT_SECONDS:-600} $(BIN)/python -m pytest -q -s tests/end_to_end/test_fault_injector.py

lint:
	@sh .ci/venv $(VENV) dev
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@echo "make lint: ruff and mypy found nothing"

golden:
	@sh .ci/venv $(VENV) dev
	@$(BIN)/python -m pytest -q -n 2 --update-golden
	@$(BIN)/python -m docs.metrics_table
	@$(BIN)/python -m docs.drivers_table
	@$(BIN)/python -m docs.machines_table
	@$(BIN)/python -m docs.advice_lists
	@echo "make golden: rewritten; now read 'git diff tests/golden'"

bench:
	@sh .ci/venv $(VENV) dev
	@sh .ci/tools prometheus-node-exporter:prometheus-node-exporter
	@$(BIN)/python -m benchmarks

dashboards:
	@sh .ci/venv $(VENV) dev
	@$(BIN)/python -m dashboards.build
	@$(BIN)/python -m deploy.prometheus.build
	@echo "make dashboards: dashboards/ and deploy/prometheus/ are what their tables say"

pictures:
	@sh .ci/venv $(VENV) dev
	@$(BIN)/python -m docs.pictures
	@$(BIN)/python -m docs.measure_pictures
	@echo "make pictures: drawn; see docs/pictures/"

# Universal: one file for Python 3.10 to 3.13 and every architecture, with hashes and without the address of a registry.
LOCK = $(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.10 --generate-hashes --no-header --no-annotate --output-file
lock:
	@sh .ci/venv $(VENV) dev
	@cd deploy/image && ../../$(LOCK) requirements.new ../../pyproject.toml && printf 'hatchling>=1.24\n' | ../../$(LOCK) requirements-build.new -
	@cd deploy/image && for f in requirements requirements-build; do \
	  { sed '/^#/!Q' $$f.txt; cat $$f.new; } >$$f.both && mv $$f.both $$f.txt && rm $$f.new; done
	@echo "make lock: pinned anew; now read 'git diff deploy/image'"

pythons:
	@sh .ci/venv $(VENV) dev
	@$(BIN)/python .ci/pythons

screenshots:
	@sh .ci/venv $(VENV) dev
	@$(BIN)/python -m docs.screenshots
	@echo "make screenshots: taken; look at build/screenshots/ and docs/pictures/page_*.png"

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
