# Every target builds .venv by itself: a new machine needs Python 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo compare-demo compare-separate-async live-vs-simulated browser-test test prometheus-test lint bench clean soak chaos

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/swingshift train configs/demo.yaml trainer.default_local_dir=runs/demo trainer.overwrite=true

compare-demo: setup
	$(BIN)/python benchmarks/compare_demo.py --out runs/compare-demo

compare-separate-async: setup
	$(BIN)/python benchmarks/compare_demo.py --out runs/compare-separate-async \
		--modes separate-static separate-async

live-vs-simulated: setup
	$(BIN)/python benchmarks/live_vs_simulated.py --out runs/live-vs-simulated

# Runs with real processes wait for each other a third of the time: two side by side. Each has a Ray of its own.
test: setup lint
	$(BIN)/python -m pytest -n 2 -m "not ray"
	$(BIN)/python -m pytest -n 2 --maxschedchunk 1 -m ray

SEEDS ?= 1000
START ?= 0

soak: setup
	$(BIN)/swingshift soak --seeds $(SEEDS) --start $(START)

chaos: setup
	$(BIN)/python -m pytest -s tests/e2e/chaos_check.py

browser-test: setup
	$(BIN)/pip install --disable-pip-version-check --quiet -e '.[browser]'
	$(BIN)/python -m pytest tests/external/report_page_check.py

prometheus-test: setup
	$(BIN)/python -m pytest -s tests/external/prometheus_check.py

lint: setup
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: setup
	for name in control_plane engine training weight_sync simulator observability live_vs_simulated; do \
		echo "== $$name" && $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

clean:
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache
