# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
HOST ?= 127.0.0.1
PORT ?= 8000

.PHONY: help install serve test test-all test-nightly test-opencv4 gpu-check lint bench clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# What serving needs: no torch, no test tools.
$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[cpu]'
	@touch $@

# Everything: serving, training and the checks.
$(VENV)/.full: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[cpu,train,dev]'
	@touch $@ $(VENV)/.serve

install: $(VENV)/.full ## everything into .venv, at the locked versions

serve: $(VENV)/.serve ## start the service on the shipped model
	$(BIN)/matchserve serve --host $(HOST) --port $(PORT)

lint: $(VENV)/.full ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## all checks and the fast tests
	$(BIN)/pytest -n 2 -m 'not slow and not nightly'

test-all: lint ## all checks and every test but the nightly ones
	$(BIN)/pytest -n 2 -m 'not nightly'

test-nightly: $(VENV)/.full ## install the GPU packages in a clean folder and load them (4 GB)
	$(BIN)/pytest -m nightly

# Needs a device and `pip install '.[gpu]'` in PATH; docs/operations/gpu-checklist.md explains each.
gpu-check: ## run the ten commands of the GPU checklist
	$(PYTHON) -m tests.gpu.checklist

# The oldest OpenCV that works with NumPy 2, laid over the environment.
test-opencv4: $(VENV)/.full ## the core's tests on OpenCV 4
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/opencv4 opencv-python-headless==4.10.0.84
	PYTHONPATH=$(VENV)/opencv4 $(BIN)/python -c 'import cv2; assert cv2.__version__.startswith("4."), cv2.__version__'
	PYTHONPATH=$(VENV)/opencv4 $(BIN)/pytest -n 2 -m 'not slow' tests/unit/matchserve tests/property

bench: $(VENV)/.full ## time every stage against OpenCV's SIFT in one run
	$(BIN)/matchserve bench

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
