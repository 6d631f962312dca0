# make demo, test, lint, test-slow, test-device, test-docs, test-extra, test-engines, docs, dist, release, house, bench, nightly, mutants: each makes its environment when it is not
# there, so that a fresh machine needs nothing first. PIP_ARGS goes to pip
# (for example PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for CPU-only torch).
PYTHON ?= python3
BIN := .venv/bin
# curvlinops without its dependency torchvision, whose CUDA build breaks beside a CPU torch; its tests skip if it is absent
ORACLE := curvlinops-for-pytorch backpack-for-pytorch einconv einops linear_operator opt_einsum tqdm unfoldNd

# what the examples of merging run on; Spark needs Java, and is skipped without
ENGINES := 'dask[dataframe]' 'ray[data]' pyspark

.PHONY: demo test test-slow test-device test-docs test-extra test-engines docs dist release house nightly mutants bench lint clean

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt --no-deps $(ORACLE)
	touch $@

demo: .venv/.ready
	PATH="$(CURDIR)/$(BIN):$$PATH" sh sample_data/demo.sh

# with bytecode, also where the environment forbids it: tests start some hundred processes
test: .venv/.ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal

# long simulations, and the rows of costly tests of which `make test` runs one in n
test-slow: .venv/.ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto --dist worksteal -m 'slow and not extra and not docs and not engines'

# on a CUDA device: the real one, or a pretended one that is built once (a minute); in a process of its own
test-device: .venv/.ready
	$(BIN)/python -m pytest tests/device

# the documents and examples against the code: what the README and docstrings print, every command line, link, anchor, pipeline
test-docs: .venv/.ready
	$(BIN)/python -m pytest -m docs -n auto --dist loadfile

lint: .venv/.ready
	$(BIN)/ruff format --check calibcli tests benchmarks sample_data docs release examples
	$(BIN)/ruff check calibcli tests benchmarks sample_data docs release examples
	$(BIN)/mypy

# tests marked `extra`, with packages that few users have, in an environment of their own; torchvision by itself, because
# what it depends on would replace a CPU torch (tests/zoos.py imports it all the same)
.venv-extra/.ready: pyproject.toml constraints.txt
	test -x .venv-extra/bin/python || $(PYTHON) -m venv .venv-extra
	.venv-extra/bin/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[test,parquet,evals,hf,docs,onnx,slices]' accelerate peft skops polars basedpyright
	.venv-extra/bin/python -m pip install -q $(PIP_ARGS) -c constraints.txt --no-deps timm torchvision skl2onnx axe-core-python $(ORACLE)
	touch $@

test-extra: .venv-extra/.ready
	PYTHONPATH=tests .venv-extra/bin/python -m pytest -p zoos -m extra -n auto --dist worksteal

# the examples on Dask, Ray and Spark (which needs Java): about 1 GB of packages, so by hand
test-engines: .venv-extra/.ready
	.venv-extra/bin/python -m pip install -q $(PIP_ARGS) -c constraints.txt $(ENGINES)
	.venv-extra/bin/python -m pytest -m engines

# the site, in site/: open site/index.html
docs: .venv-extra/.ready
	.venv-extra/bin/python docs/pages.py
	NO_MKDOCS_2_WARNING=1 .venv-extra/bin/python -m mkdocs build -q

.venv-release/.ready: release/requirements.txt
	test -x .venv-release/bin/python || $(PYTHON) -m venv .venv-release
	.venv-release/bin/python -m pip install -q $(PIP_ARGS) -r release/requirements.txt
	touch $@

# what is published, in dist/, with the tests of the unpacked source distribution
dist: .venv-release/.ready
	.venv-release/bin/python release/distributions.py

# everything of a release but the upload: make release VERSION=0.1.0
release: .venv-release/.ready
	.venv-release/bin/python release/steps.py $(VERSION)

# by hand, some hours: the full simulations and the oldest versions that pyproject.toml allows
nightly: .venv/.ready .venv-extra/.ready
	$(BIN)/python benchmarks/nightly.py

# by hand, half an hour: breaks 60 lines of the code one at a time, in a copy, and sees that a test notices each
mutants: .venv/.ready
	$(BIN)/python tests/mutants.py

# rooms, lines of code, imports
house: .venv/.ready
	$(BIN)/python tests/house.py

bench: .venv/.ready
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv .venv-extra .venv-release out build dist site *.egg-info
