# make try: attack a pretrained network and write a report, in seconds after the install. make demo: train, attack,
# compare and report, in a minute or two on two cores. make test: all tests but those of `make slow`, which takes
# minutes. make look: screenshots and checks of the reports, with Chromium. make docs: the documentation as a website,
# in site/. make readme: tables, picture and model cards from rows. Each sets up .venv by itself.
PYTHON ?= python3
BIN := .venv/bin
CORES := $(shell getconf _NPROCESSORS_ONLN)

.PHONY: setup try demo look test slow campaign campaign-short lint types docs readme clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs,attacks,report,export]'
	touch $@

try: setup
	$(BIN)/atent attack zoo:mnist-linf --data mnist-small --examples 200 --set steps=20 --save-images
	@$(BIN)/atent report zoo:mnist-linf --out runs/zoo-mnist-linf/report.html

demo: setup
	$(BIN)/atent train demo
	$(BIN)/atent train demo-plain
	$(BIN)/atent attack runs/demo --set steps=20 --save-images
	$(BIN)/atent attack runs/demo-plain --set steps=20
	@echo "Trained on a noisy chain (the defense atent), and plainly:"
	@$(BIN)/atent show runs/demo runs/demo-plain
	@$(BIN)/atent report runs/demo --out runs/demo/report.html
	@$(BIN)/atent report runs/demo runs/demo-plain --out runs/demo/compared.html

look:
	$(PYTHON) scripts/look.py $(wildcard runs/zoo-*/*.html runs/demo/*.html report.html) --out runs/shots $(if $(AXE),--axe $(AXE))

test: setup
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(CORES) --dist worksteal

slow: setup
	ATENT_SLOW=1 OMP_NUM_THREADS=1 $(BIN)/pytest tests/test_torchrun.py

# Against kills, faults and hostile input: `make campaign ARGS='--kind recipes --cases 1000 --seed 7'`; all kinds in full
# without ARGS, about 17 minutes of CPU. ARGS='--only recipes:17' repeats one case.
campaign: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m campaign $(ARGS)

campaign-short: setup
	PYTHONPATH=tests OMP_NUM_THREADS=1 $(BIN)/python -m campaign --short

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

readme: setup
	$(BIN)/python scripts/fill_zoo.py --cards
	$(BIN)/python scripts/fill_tables.py
	$(BIN)/python scripts/robustness_curve.py
	$(BIN)/python scripts/entropy_picture.py

clean:
	rm -rf .venv build site *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
