# Every target builds .venv by itself: a new machine needs Python 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup demo compare-demo test lint bench clean

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/swingshift train configs/demo.yaml trainer.default_local_dir=runs/demo trainer.overwrite=true

compare-demo: setup
	$(BIN)/python benchmarks/compare_demo.py --out runs/compare-demo

test: setup lint
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: setup
	for name in control_plane engine training weight_sync simulator; do \
		echo "== $$name" && $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

clean:
	rm -rf runs .pytest_cache .mypy_cache .ruff_cache
