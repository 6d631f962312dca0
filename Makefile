# make demo · make test · make bench: each makes .venv when it is not there. PIP_ARGS goes to pip
# (for example PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu" for CPU-only torch).
PYTHON ?= python3
BIN := .venv/bin
# curvlinops without its dependency torchvision, whose CUDA build breaks beside a CPU torch; its tests skip if it is absent
ORACLE := curvlinops-for-pytorch backpack-for-pytorch einconv einops linear_operator opt_einsum tqdm unfoldNd

.PHONY: demo test bench lint clean

.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt -e '.[test]'
	$(BIN)/python -m pip install -q $(PIP_ARGS) -c constraints.txt --no-deps $(ORACLE)
	touch $@

demo: .venv/.ready
	PATH="$(CURDIR)/$(BIN):$$PATH" sh sample_data/demo.sh

test: .venv/.ready
	$(BIN)/python -m pytest

lint: .venv/.ready
	$(BIN)/ruff check calibcli tests benchmarks sample_data
	$(BIN)/mypy

bench: .venv/.ready
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv out build dist *.egg-info
