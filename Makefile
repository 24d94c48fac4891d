# Everything from nothing but Python 3.11+ and make: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Quiet, and the same packages everywhere; errors are still shown.
PIP := PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet
CONSTRAINED := $(PIP) -c constraints.txt

.PHONY: demo test test-long lint docs setup page page-check browser validate-more clean

demo: $(VENV)/engine.done
	@$(BIN)/meshwright plan llama3-70b --cluster h100:8x8 --seq 8192 --global-batch 4M-tokens
	@echo; echo "── and for real: the lessons' four-layer model on four processes of this machine ──"; echo
	@mkdir -p runs
	@echo "measuring this machine first, half a minute, so that what is predicted is what runs"
	@$(BIN)/meshwright measure --quick --ranks 4 --precision fp32 -o runs/mine.toml
	@$(BIN)/meshwright plan toy --cluster runs/mine.toml --tp 2 --pp 2 --seq 128 --global-batch 16 \
	  --framework meshwright --precision fp32 --brief -o runs/demo.toml
	@$(BIN)/meshwright train runs/demo.toml --out runs/demo --steps 40
	@$(BIN)/meshwright verify runs/demo.toml
	@echo; echo "Next:"
	@echo "  $(BIN)/meshwright studio                     the lessons, simulations and the planner as a page"
	@echo "  $(BIN)/meshwright report runs/demo           the run that you just saw, on one page"
	@echo "  $(BIN)/meshwright plan MODEL --cluster NODES a plan of your own (meshwright models, meshwright clusters)"

setup: $(VENV)/full.done

test: $(VENV)/full.done browser lint docs
	$(BIN)/pytest -n 2 --dist worksteal -m "not long"

# The rest of the tests: more of the same, and what takes half a minute by its nature.
test-long: $(VENV)/full.done browser
	$(BIN)/pytest -n 2 --dist worksteal -m long

docs: $(VENV)/full.done
	$(BIN)/sphinx-build -q -b html docs docs/_build/html

lint: $(VENV)/full.done
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

$(VENV)/core.done: pyproject.toml constraints.txt
	@echo "meshwright: making $(VENV) (one minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade "pip>=25.1"
	@$(CONSTRAINED) -e .
	@touch $@

$(VENV)/engine.done: $(VENV)/core.done
	@echo "meshwright: adding PyTorch and the studio (one minute)"
	@$(CONSTRAINED) "torch==2.13.0"
	@$(CONSTRAINED) -e ".[engine,studio,fast]"
	@touch $@

# Small system tools that some tests drive (SLURM among them: its controller judges our scripts); without
# root those tests say what they miss.
$(VENV)/system.done: $(VENV)/engine.done
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  command -v shellcheck >/dev/null && command -v ip >/dev/null || { \
	    echo "meshwright: installing shellcheck and iproute2"; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends shellcheck iproute2 >/dev/null; }; \
	  command -v slurmctld >/dev/null || { \
	    echo "meshwright: installing slurmctld, slurmd and slurm-client"; \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
	      --no-install-recommends slurmctld slurmd slurm-client >/dev/null \
	      || echo "meshwright: no SLURM here; its tests are skipped"; }; \
	fi
	@touch $@

$(VENV)/full.done: $(VENV)/system.done
	@echo "meshwright: adding what the tests need (two minutes)"
	@$(CONSTRAINED) -e ".[engine,studio,fast]" --group test --group lint --group browser --group docs --group build
	@echo "meshwright: adding the parsers that check exports (one minute)"
	@$(CONSTRAINED) "setuptools>=77" "wheel>=0.45"
	@$(CONSTRAINED) --no-build-isolation --group validate
	@$(CONSTRAINED) --no-deps --ignore-requires-python \
	  --target $(VENV)/validate/megatron-core-0.19.2 megatron-core==0.19.2
	@touch $@

# The page of the studio, from studio-web/ (Node 20.19 or newer; nothing else here needs Node).
page:
	cd studio-web && npm ci && npm run check && npm test && npm run build

# The page's types, from the server's OpenAPI document.
types: $(VENV)/core.done
	$(CONSTRAINED) -e ".[studio]"
	$(BIN)/meshwright studio --openapi -o studio-web/openapi.json
	cd studio-web && node types.mjs openapi.json src/lib/openapi.ts && rm openapi.json

# The committed page must be what its source builds, byte for byte.
page-check: types page
	git diff --exit-code -- src/meshwright/studio/static studio-web/src/lib/openapi.ts

# Chromium for the browser tests: the system's, else Debian's package as root, else Playwright's own.
browser: $(VENV)/full.done
	@for name in "$$MESHWRIGHT_CHROMIUM" chromium chromium-browser google-chrome; do \
	  if [ -n "$$name" ] && command -v "$$name" >/dev/null; then exit 0; fi; done; \
	if $(BIN)/python -c "import pathlib, sys; from playwright.sync_api import sync_playwright; \
	p = sync_playwright().start(); sys.exit(not pathlib.Path(p.chromium.executable_path).exists())"; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update && \
	  apt-get install -y --no-install-recommends chromium fonts-dejavu-core; then exit 0; fi; \
	$(BIN)/playwright install chromium

# Megatron-Bridge's own program, newer than its releases, with the Megatron-LM that it names: of each what is run.
# Both may come from elsewhere: make … BRIDGE=PATH MEGATRON=PATH, with addresses or folders that git can clone.
BRIDGE ?= https://github.com/NVIDIA-NeMo/Megatron-Bridge
MEGATRON ?= https://github.com/NVIDIA/Megatron-LM
BRIDGE_COMMIT := 067f987df03b8355b03192d88d70f1709fedf51a
BRIDGE_AT := $(VENV)/validate/megatron-bridge-067f987
SPARSELY := git clone -q --filter=blob:none --no-checkout

$(BRIDGE_AT):
	@rm -rf $@.part
	$(SPARSELY) $(BRIDGE) $@.part
	cd $@.part && git sparse-checkout set src scripts && git checkout -q $(BRIDGE_COMMIT)
	$(SPARSELY) $(MEGATRON) $@.part/3rdparty/Megatron-LM
	cd $@.part/3rdparty/Megatron-LM && git sparse-checkout set megatron && \
	  git checkout -q $$(git -C ../.. rev-parse HEAD:3rdparty/Megatron-LM)
	@mv $@.part $@

# Parsers of exports that take minutes to install.
validate-more: $(VENV)/full.done
	$(PIP) --no-deps --target $(VENV)/validate/torchtitan-0.3.0 torchtitan==0.3.0
	$(PIP) --no-deps --target $(VENV)/validate/lightning-2.6.6 \
	  lightning==2.6.6 lightning-utilities==0.15.3 torchmetrics==1.9.0
	$(PIP) --target $(VENV)/validate/skypilot-0.14.1 skypilot==0.14.1
	$(PIP) --no-deps --target $(VENV)/validate/megatron-bridge-0.3.1 \
	  megatron-bridge==0.3.1 hydra-core==1.3.2 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3
	$(PIP) --no-deps --ignore-requires-python \
	  --target $(VENV)/validate/megatron-core-0.16.1 megatron-core==0.16.1  # the newest that the bridge takes
	$(PIP) --target $(VENV)/validate/ray-2.60.0 "ray[train]==2.60.0"
	$(PIP) --no-deps --target $(VENV)/validate/trl-1.16.0 trl==1.16.0
	$(PIP) --no-deps --ignore-requires-python --target $(VENV)/validate/axolotl-0.21.0 axolotl==0.21.0
	$(PIP) --no-deps --target $(VENV)/validate/axolotl-needs \
	  pycountry==26.2.16 pydantic-extra-types==2.11.1 adlfs==2026.8.0 art==6.5 axolotl-contribs-lgpl==0.0.7 \
	  axolotl-contribs-mit==0.0.6 backoff==2.2.1 beartype==0.23.1 colorama==0.4.6 distro==1.9.0 \
	  evaluate==0.4.1 fastcore==2.2.39 fasttransform==0.0.5 gcsfs==2026.10.1 immutabledict==4.3.1 \
	  kernels==0.17.2 langdetect==1.0.9 llvmlite==0.50.0 mistral-common==1.12.0 numba==0.68.1 \
	  nvidia-ml-py==13.615.71 plum-dispatch==2.10.1 posthog==6.7.11 python-dotenv==1.0.1 requests==2.34.2 \
	  schedulefree==1.4.1 scipy==1.17.1 torchao==0.18.0 transformers==5.20.1 trl==1.14.1
	$(PIP) --no-deps --target $(VENV)/validate/llamafactory-0.9.5 llamafactory==0.9.5
	$(PIP) --no-deps --target $(VENV)/validate/torchtune-0.6.1 torchtune==0.6.1
	$(PIP) --no-deps --target $(VENV)/validate/tuning-needs \
	  addict omegaconf==2.3.0 antlr4-python3-runtime==4.9.3
	$(PIP) --no-deps --target $(VENV)/validate/llamafactory-needs transformers==5.6.0 peft==0.18.1 \
	  accelerate==1.11.0 trl==0.24.0 datasets==4.0.0 tokenizers==0.22.2 huggingface_hub==1.21.0
	$(PIP) --no-deps --target $(VENV)/validate/tuning-runs datasets==4.7.0 pyarrow==26.0.1 sentencepiece==0.2.3 \
	  tiktoken==0.14.0 blobfile==3.3.0 pycryptodomex==3.24.2 lxml==6.1.3 kagglehub==1.0.3 kagglesdk==0.1.38 \
	  omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 fire==0.7.1 termcolor==3.3.0 pandas==2.3.3 \
	  python-dateutil==4.0.0 pytz==2026.6 tzdata==2026.6 six==1.17.0 dill==0.4.0 multiprocess==0.70.18 xxhash==4.1.0 \
	  aiohttp==3.14.5 aiosignal==1.4.0 frozenlist==1.8.0 multidict==7.2.1 yarl==1.25.1 propcache==0.5.4 \
	  aiohappyeyeballs==2.7.1 attrs==26.1.0 torchdata==0.11.0 einops==0.8.2 addict==2.4.0 platformdirs \
	  tyro==0.8.14 docstring-parser==0.18.0 shtab==1.13.0 typeguard==4.6.0 pillow==13.0.0 rich colorama==0.4.6 \
	  bitsandbytes==0.50.2
	$(PIP) --no-deps --target $(VENV)/validate/torchtune-0.6.1 torchao==0.14.1
	$(PIP) --no-deps --ignore-requires-python --target $(VENV)/validate/maxtext-0.2.5 maxtext==0.2.5
	$(PIP) --target $(VENV)/validate/maxtext-needs flax==0.12.8 jax==0.10.2 omegaconf==2.3.0 jinja2
	$(PIP) --no-deps --target $(VENV)/validate/verl-0.9.1 verl==0.9.1
	$(PIP) --no-deps --target $(VENV)/validate/verl-needs tensordict==0.10.0 hydra-core==1.3.2 omegaconf==2.3.0 \
	  antlr4-python3-runtime==4.9.3 codetiming==1.4.0 pyvers==0.2.3 orjson==3.13.0 cloudpickle==3.1.3 transformers==5.10.4 \
	  tokenizers==0.22.2 huggingface_hub==1.21.0
	-$(PIP) --no-deps --target $(VENV)/validate/nanotron-2411b02 dacite==1.9.2 \
	  git+https://github.com/huggingface/nanotron@2411b022a75fb7f7561a1bb4166706da5e1b76de
	-$(MAKE) $(BRIDGE_AT)
	$(PIP) --no-deps --target $(VENV)/validate/triton-3.6.0 triton==3.6.0
	$(PIP) --no-deps --target $(VENV)/validate/torchtitan-needs \
	  spmd_types==0.2.3 tyro==1.0.17 torchdata==0.11.0 torch_checkpointing==0.1.1 einops==0.8.2 \
	  datasets==4.7.0 docstring-parser==0.18.0 typeguard==4.6.0 shtab==1.13.0 pillow==13.0.0 wandb==0.31.0 \
	  pandas==2.3.3 python-dateutil==4.0.0 six==1.17.0 pytz==2026.6 tzdata==2026.6 dill==0.4.0 \
	  multiprocess==0.70.18 xxhash==4.1.0 aiohttp==3.14.5 aiosignal==1.4.0 frozenlist==1.8.0 multidict==7.2.1 \
	  yarl==1.25.1 propcache==0.5.4 aiohappyeyeballs==2.7.1 attrs==26.1.0
	MESHWRIGHT_VALIDATE_MORE=1 $(BIN)/pytest tests/exports/test_more_parsers.py tests/exports/test_drawn_parsers.py
	$(BIN)/python benchmarks/export_runs.py
	$(BIN)/python benchmarks/prove_frameworks.py

clean:
	rm -rf $(VENV) dist docs/_build
