# Two commands do everything on a fresh machine: `make serve` and `make test`.
PYTHON ?= python3
VENV ?= .venv
GPU_VENV ?= .venv-gpu
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt
HOST ?= 127.0.0.1
PORT ?= 8000

.PHONY: help install serve style types fast-tests test test-all test-nightly test-opencv4 test-pycolmap4.0 gpu-check lint docs docs-serve bench wheel lock sbom pin-base-image clean

help: ## list these targets
	@grep -hE '^[a-z0-9.-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Packages for serving: no PyTorch, no test tools.
$(VENV)/.serve: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[cpu]'
	@touch $@

# Packages for serving, training, the checks and the documentation.
$(VENV)/.full: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[cpu,train,dev,docs]'
	@touch $@ $(VENV)/.serve

install: $(VENV)/.full ## install everything into .venv, at the pinned versions

serve: $(VENV)/.serve ## start the service with the shipped models (HOST, PORT)
	$(BIN)/matchserve serve --host $(HOST) --port $(PORT)

lint: style types ## run ruff, mypy and import-linter

style: $(VENV)/.full
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.full
	$(BIN)/mypy
	$(BIN)/lint-imports

# The types are checked beside the tests. More workers than two cores: many tests wait for servers,
# browsers and deadlines.
test: style ## run all checks and the fast tests, with coverage
	@$(MAKE) --no-print-directory -j 2 types fast-tests

fast-tests: $(VENV)/.full
	MAKEFLAGS= MFLAGS= $(BIN)/pytest -n 3 -m 'not slow and not nightly' --durations=15 --cov --cov-report=
	@$(BIN)/python -m tests.coverage_floor

test-all: lint ## run all checks and all tests except the nightly ones
	$(BIN)/pytest -n 2 -m 'not nightly'

# What takes long or needs a quiet machine: fuzzing, soak, load, the security tests with their bars in
# seconds, and the GPU packages (4 GB). NIGHTLY_* (tests/nightly/budget.py) make it shorter.
$(VENV)/.nightly: $(VENV)/.full
	$(PIP) -e '.[cpu,train,dev,docs,fuzz]'
	@touch $@

test-nightly: $(VENV)/.nightly ## run what takes long: fuzzing, soak, load, exact times, GPU packages (4 GB)
	EXACT_TIMES=1 $(BIN)/pytest -m nightly
	EXACT_TIMES=1 $(BIN)/pytest -m 'not nightly' tests/security tests/load

# The GPU packages have an environment of their own: PyTorch brings another cuDNN.
$(GPU_VENV)/.gpu: pyproject.toml constraints.txt constraints-gpu.txt
	$(PYTHON) -m venv $(GPU_VENV)
	$(GPU_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-gpu.txt -e '.[gpu]'
	@touch $@

gpu-check: $(GPU_VENV)/.gpu $(VENV)/.full ## run the ten commands of docs/operations/gpu-checklist.md (needs a GPU)
	PATH="$(abspath $(GPU_VENV))/bin:$$PATH" python3 -m tests.gpu.checklist serving
	PATH="$(abspath $(BIN)):$$PATH" python3 -m tests.gpu.checklist training

# The oldest OpenCV that works with NumPy 2, in a folder that is searched before .venv.
test-opencv4: $(VENV)/.full ## run the tests of vision on OpenCV 4
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/opencv4 opencv-python-headless==4.10.0.84
	PYTHONPATH=$(VENV)/opencv4 $(BIN)/python -c 'import cv2; assert cv2.__version__.startswith("4."), cv2.__version__'
	PYTHONPATH=$(VENV)/opencv4 $(BIN)/pytest -n 2 -m 'not slow' tests/unit/matchserve tests/property

# The oldest pycolmap that pyproject.toml allows.
test-pycolmap4.0: $(VENV)/.full ## run the tests of reconstruction on the oldest pycolmap
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(VENV)/pycolmap4.0 pycolmap==4.0.0
	PYTHONPATH=$(VENV)/pycolmap4.0 $(BIN)/python -c 'import pycolmap; assert pycolmap.__version__ == "4.0.0", pycolmap.__version__'
	PYTHONPATH=$(VENV)/pycolmap4.0 $(BIN)/pytest -n 2 tests/unit/matchserve/collections tests/unit/training/data/scenes tests/unit/training/evaluation/test_cameras.py

# The variable turns off a notice about another documentation tool.
docs: $(VENV)/.full ## build the documentation site in site/, without network access
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.full ## show the documentation on http://127.0.0.1:8001 while you edit it
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

bench: $(VENV)/.full ## time every stage, compared with OpenCV's SIFT
	$(BIN)/matchserve bench

wheel: | $(BIN)/python ## build dist/matchserve-VERSION-py3-none-any.whl, to install without a clone
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

lock: $(VENV)/.full ## write requirements/*.txt, the versions and hashes that the images install
	$(BIN)/python -m supply.lock

sbom: $(VENV)/.full ## write the bills of materials of the images to dist/ (CycloneDX JSON)
	$(BIN)/python -m supply.sbom dist

pin-base-image: $(VENV)/.full ## write the digest of the base image to the Dockerfile (needs Docker)
	$(BIN)/python -m supply.base_image

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) $(GPU_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage* dist build site
