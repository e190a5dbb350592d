# What a developer does with geartrain; `make help` lists it. Needs Python 3.11 or newer, with venv.

PYTHON ?= python3
GPU_PYTHON ?= python3
PORT ?= 5000
OLD ?= HEAD
NEW ?= .

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PINS := pyproject.toml constraints.txt
BUILD_PACKAGES := hatchling hatch-fancy-pypi-readme editables
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --need-all
# The tests of the protocols, which pass behind every wire.
CONFORMANCE := tests/conformance
ASGI_TESTS := $(addprefix $(CONFORMANCE)/test_,modes.py cog_*.py sse*.py mcp.py open_inference_rest.py trainings.py webhooks.py)
GRPC_TESTS := $(addprefix $(CONFORMANCE)/test_,open_inference_grpc.py kserve_client.py)
HTTP2_TESTS := $(addprefix $(CONFORMANCE)/test_http2_,protocol.py requests.py)
# Those in which the wire takes part: routes, bodies, streams, and clients that leave (CONTRIBUTING.md). ALL=1: all.
ON_WIRE := modes cog_cancel cog_predictions cog_requests cog_routes mcp open_inference_rest sse sse_readers
ON_WIRE_TESTS := $(if $(ALL),$(ASGI_TESTS),$(ON_WIRE:%=$(CONFORMANCE)/test_%.py) $(addprefix $(CONFORMANCE)/test_cog_, \
  crash.py::test_client_that_hangs_up_as_the_worker_dies inputs.py::test_client_hangs_up_during_a_download \
  inputs.py::test_large_data_url outputs.py::test_output_of_many_megabytes))
# Those of predictions that a store knows; the rest of the tests of Cog's API never ask for one by its id.
STORED := modes cog_predictions cog_cancel cog_routes sse_readers webhooks
STORED_TESTS := $(STORED:%=$(CONFORMANCE)/test_%.py) tests/server/test_nested_calls.py
ON_WIRE_MARKS := $(if $(ALL),,-m 'not slow')
SECURED_TESTS := $(ON_WIRE_TESTS) $(GRPC_TESTS) $(HTTP2_TESTS) tests/server/test_large_tensors.py
RUNTIME := $(VENV)/.stamp-runtime
TOOLS := $(VENV)/.stamp-tools
# The recipes of examples/, whose libraries are large: an environment of their own.
RECIPES := .venv-recipes
TEXT_MODELS := tests/text_models
RECIPES_PIP := $(RECIPES)/bin/python -m pip --disable-pip-version-check
JS := tests/js
JS_CLIENT := $(JS)/node_modules/.stamp

# Some containers forbid Python to keep what it has compiled. The tests start it hundreds of times.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: serve
serve: $(RUNTIME) ## serve examples/digits on http://127.0.0.1:5000 (PORT=… for another port)
	@$(BIN)/geartrain serve examples/digits --port $(PORT)

# The suite leaves a quarter of the processors' time idle, for limits and other processes; a second job takes it.
.PHONY: test
test: $(TOOLS) ## everything that has to hold before a change lands; the output of each part comes when the part is over
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types
	@$(MAKE) --no-print-directory -j2 --output-sync=target suite recipes api-clients wires

.PHONY: suite
suite: $(TOOLS) clients ## the tests, on all cores
	@$(BIN)/python -m pytest $(PARALLEL)

.PHONY: wires
wires: $(TOOLS) ## again, with TLS and keys, inside uvicorn, and with stores: tests in which that matters and that are not slow, or all with ALL=1
	@$(BIN)/python -m pytest $(PARALLEL) $(SECURED_TESTS) $(ON_WIRE_MARKS) --wire secured
	@$(BIN)/python -m pytest $(PARALLEL) $(ON_WIRE_TESTS) $(ON_WIRE_MARKS) --wire asgi
	@$(BIN)/python -m pytest $(PARALLEL) $(STORED_TESTS) $(ON_WIRE_MARKS) --wire stored
	@$(BIN)/python -m pytest $(PARALLEL) $(STORED_TESTS) $(ON_WIRE_MARKS) --wire stored-postgres

.PHONY: recipes
recipes: $(RECIPES)/.stamp ## the tests of examples/ (docs/recipes.md) and of language models, with the libraries that they use
	@OMP_NUM_THREADS=1 $(RECIPES)/bin/python -m pytest -q examples
	@OMP_NUM_THREADS=1 $(RECIPES)/bin/python -m pytest -q -c $(TEXT_MODELS)/pytest.ini --rootdir . --confcutdir $(TEXT_MODELS) $(TEXT_MODELS)

.PHONY: api-clients
api-clients: $(TOOLS) clients ## clients of OpenAI's API and its relatives, each in an environment where its pins fit; CLIENTS="newest npm" for some
	@$(BIN)/python -m tests.clients $(CLIENTS)

.PHONY: test-gpu
test-gpu: ## the tests that need a GPU of NVIDIA, with the torch of GPU_PYTHON, beside which geartrain[gpu] is installed
	@$(GPU_PYTHON) -m pytest -q -c tests/gpu/pytest.ini --rootdir . --confcutdir tests/gpu tests/gpu
	@$(GPU_PYTHON) -m pytest -q -c $(TEXT_MODELS)/pytest.ini --rootdir . --confcutdir $(TEXT_MODELS) $(TEXT_MODELS)
	@$(GPU_PYTHON) -m pytest -q examples/gpu examples/generate

.PHONY: test-ray
test-ray: $(TOOLS) ## the tests with a real Ray, which is installed for them, and those of the protocols on it
	@$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[ray]'
	@$(BIN)/python -m pytest tests/server/test_ray.py tests/server/test_ray_data.py
	@$(BIN)/python -m pytest $(PARALLEL) $(ASGI_TESTS) $(GRPC_TESTS) --wire haproxy
	@$(BIN)/python -m pytest $(ASGI_TESTS) $(GRPC_TESTS) --wire ray

.PHONY: clients
clients: ## what npm has for the tests; without npm, or without a network, those that need it are skipped
	@command -v npm >/dev/null || { echo "No npm here: the tests with gRPC for Node.js and those of accessibility will be skipped."; exit 0; }; \
	  $(MAKE) -s --no-print-directory $(JS_CLIENT) || echo "npm could not install: the tests with gRPC for Node.js and those of accessibility will be skipped."

.PHONY: cover
cover: $(TOOLS) clients ## the tests, with coverage: it takes half as long again
	@$(BIN)/python -m pytest $(PARALLEL) --cov --cov-report=term

.PHONY: quick
quick: $(TOOLS) ## the tests without the slow ones and without coverage
	@$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

.PHONY: check
check: $(TOOLS) ## lint, types and tests of one package of src/geartrain, in less than a minute: PKG=service/scheduling
	@test -n "$(PKG)" -a -d "src/geartrain/$(PKG)" -a -d "tests/unit/$(PKG)" || \
	  { echo "PKG has to name a package with tests in tests/unit, such as PKG=service/scheduling"; exit 2; }
	@$(BIN)/ruff check src/geartrain/$(PKG) tests/unit/$(PKG)
	@$(BIN)/ruff format --check src/geartrain/$(PKG) tests/unit/$(PKG)
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy src/geartrain/$(PKG) tests/unit/$(PKG)
	@$(BIN)/python -m pytest $(PARALLEL) -q tests/unit/$(PKG) tests/unit/test_budgets.py tests/unit/test_house.py

.PHONY: lint
lint: $(TOOLS) ## ruff, the format, and the layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo

.PHONY: format
format: $(TOOLS) ## put the code into shape, and mend what ruff can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

.PHONY: types
types: $(TOOLS) ## mypy, strict
	@$(BIN)/mypy

.PHONY: proto
proto: $(TOOLS) ## make the Python code of the gRPC protocol from its description
	@$(BIN)/python tools/make_proto.py

.PHONY: client
client: $(TOOLS) ## make the client that blocks of the one for asyncio
	@$(BIN)/python -m tools.make_client

.PHONY: options
options: $(TOOLS) ## make the type of the options of `geartrain.asgi` from the table of options
	@$(BIN)/python -m tools.make_options

.PHONY: manifests
manifests: $(TOOLS) ## write the objects for Kubernetes, KServe and Seldon in deploy/ anew: what `geartrain deploy` prints
	@$(BIN)/python -m tools.make_deploy

.PHONY: docs
docs: $(TOOLS) ## build the site of the documentation, in build/site; strict: a warning fails it
	@$(BIN)/python -m tools.site.build build/site
	@echo "Open build/site/index.html in a browser."

.PHONY: bench
bench: $(TOOLS) ## measure against other servers, side by side (needs wrk; see benchmarks/README.md)
	@$(BIN)/python benchmarks/predict.py $(BENCH_ARGS)

.PHONY: compare
compare: $(BIN)/python ## measure NEW (this work tree) against OLD (HEAD) in turns: make compare OLD=main NEW=. (needs wrk)
	@$(BIN)/python benchmarks/compare.py $(OLD) $(NEW) $(COMPARE_ARGS)

.PHONY: constraints
constraints: ## write constraints.txt anew from an environment without pins
	@rm -rf build/constraints && $(PYTHON) -m venv build/constraints
	@build/constraints/bin/python -m pip install -q $(BUILD_PACKAGES) '.[dev,examples,ray,recipes]'
	@{ sed -n '/^#/p' constraints.txt; build/constraints/bin/python -m pip freeze -q --exclude geartrain | sed 's/+cpu$$//'; } > build/constraints.txt
	@mv build/constraints.txt constraints.txt && rm -rf build/constraints

.PHONY: clean
clean: ## remove what the tools leave behind (not the environment: make distclean)
	@rm -rf build dist .coverage .coverage.* htmlcov .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -not -path './.venv*/*' -not -path './.cache/*' -prune -exec rm -rf {} +

.PHONY: distclean
distclean: clean ## `make clean`, and the environments too
	@rm -rf $(VENV) $(RECIPES) .venv-clients .cache $(JS)/node_modules

# --- the environment: made once, and again whenever the pins change --------------------------------------------------

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "No $(PYTHON) here. geartrain needs Python 3.11 or newer; name yours: make … PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "geartrain needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make … PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# The build backend is pinned and installed like everything else, so nothing is fetched behind the pins' back.
$(RUNTIME): $(PINS) | $(BIN)/python
	@echo "Installing geartrain and the examples' packages into $(VENV), which takes a minute or two …"
	@$(PIP) install -q -c constraints.txt $(BUILD_PACKAGES)
	@$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[examples]'
	@touch $@

$(TOOLS): $(RUNTIME)
	@echo "Installing the developer's tools into $(VENV) …"
	@$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[dev,examples]'
	@touch $@

$(RECIPES)/.stamp: $(PINS) | $(BIN)/python
	@echo "Installing geartrain and the libraries of the recipes into $(RECIPES) …"
	@$(BIN)/python -m venv $(RECIPES)
	@$(RECIPES_PIP) install -q -c constraints.txt $(BUILD_PACKAGES)
	@$(RECIPES_PIP) install -q -c constraints.txt --no-build-isolation -e '.[recipes]'
	@touch $@

$(JS_CLIENT): $(JS)/package.json $(JS)/package-lock.json
	@echo "Installing gRPC and the client of OpenAI for Node.js, and axe, into $(JS)/node_modules …"
	@cd $(JS) && npm ci --loglevel=error >/dev/null
	@touch $@
