# `make demo` and `make test` do all the set-up themselves.
PYTHON ?= python3
VENV ?= .venv
OUT ?= demo
SEED ?= 0
comma := ,
BIN := $(VENV)/bin
# A changed pyproject.toml is a new set of dependencies, whatever the files' dates say.
DEPS := $(VENV)/.deps-$(shell $(PYTHON) -c "import hashlib; print(hashlib.sha256(open('pyproject.toml','rb').read()).hexdigest()[:16])")

.PHONY: install browser demo office31 long_tail asking backbones methods test golden faults fuzz check docs docs-tables docs-picture format clean

install: $(DEPS)
	@# The environment may be shared by several checkouts; point it to this one.
	@test "$$(cat $(DEPS))" = "$(CURDIR)" || { \
	  $(BIN)/python -m pip install --quiet --no-deps -e . && echo "$(CURDIR)" > $(DEPS); }

$(DEPS):
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'qurate needs Python 3.11 or newer; set PYTHON=')"
	@echo "Setting up $(VENV): torch and friends, about 5.5 GB; this takes a few minutes once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e ".[dev,docs]"
	@rm -f $(VENV)/.deps-*
	@echo "$(CURDIR)" > $(DEPS)

# The main job on the example images, typeset to handwritten digits: about a minute on 2 cores.
# `qurate demo` prints a table of methods on the same digits.
demo: install
	$(BIN)/python examples/digit_images.py $(OUT)/images
	$(BIN)/qurate adapt --source $(OUT)/images/typeset --labeled $(OUT)/images/handwritten-labelled \
	  --unlabeled $(OUT)/images/handwritten --seed $(SEED) --out $(OUT)/run --force
	@echo
	@echo "The page to look at: $(abspath $(OUT))/run/report.html"
	@echo "What to do next:"
	@echo "  . $(BIN)/activate"
	@echo "  qurate evaluate $(OUT)/run --labeled $(OUT)/images/answers    accuracy on labels that the run never saw"
	@echo "  qurate suggest $(OUT)/run --count 20 --out to_label.csv    which images to label next"
	@echo "  qurate demo    compare seven methods on these digits, in about a minute"
	@echo "docs/own_images.md describes the run folder and how to adapt images of your own."

# The paper's Office-31 table and ours, with five seeds: 200 cells, more than an hour on 2 cores. DATA holds office31/, WEIGHTS is a file.
DATA ?= ../shared/data
WEIGHTS ?= auto
SEEDS ?= 0,1,2,3,4
# The published tables are of all five seeds; those of other SEEDS go to office31/tables.
TABLES ?= $(if $(filter 0$(comma)1$(comma)2$(comma)3$(comma)4,$(SEEDS)),docs/office31,office31/tables)
office31: install
	$(BIN)/qurate benchmark --suite office31 --data $(DATA)/office31 --backbone timm/tf_efficientnet_lite0 --weights $(WEIGHTS) \
	  --methods source_target,dann,adr,cdan,ent,mme,tml,cml,tml+confidence,tml+quality,tml+balanced,tml+adaptive,tml+random,tml+dqn,tml+oracle,S+T+long,ent+long,tml+long --selectors none --presets qurate,paper --seeds $(SEEDS) --out office31
	$(BIN)/qurate report office31 --reference "TML + adaptive" --out office31/tables
	@mkdir -p $(TABLES)
	cp office31/results.csv office31/rounds.csv $(TABLES)/
	@test $(TABLES) = office31/tables || cp office31/tables/tables.md office31/tables/tables.tex office31/tables/*.png $(TABLES)/

# Office-31 with the unlabelled target as it is, and thinned to long tails of 5:1 and 20:1: 270 cells, by the times of office31
# more than an hour on 2 cores. As there, only the tables of all five seeds are the published ones.
LONG_TAIL_TABLES ?= $(if $(filter 0$(comma)1$(comma)2$(comma)3$(comma)4,$(SEEDS)),docs/long_tail,long_tail/tables)
long_tail: install
	$(BIN)/qurate benchmark --suite office31 --data $(DATA)/office31 --backbone timm/tf_efficientnet_lite0 --weights $(WEIGHTS) \
	  --methods S+T,tml,tml+confidence,tml+quality,tml+balanced,tml+share,tml+adaptive,tml+random,tml+dqn --selectors none \
	  --imbalance 1,5,20 --seeds $(SEEDS) --out long_tail
	$(BIN)/qurate report long_tail --reference "TML + adaptive" --out long_tail/tables
	@mkdir -p $(LONG_TAIL_TABLES)
	cp long_tail/results.csv long_tail/rounds.csv $(LONG_TAIL_TABLES)/
	@test $(LONG_TAIL_TABLES) = long_tail/tables || cp long_tail/tables/tables.md long_tail/tables/tables.tex long_tail/tables/*.png $(LONG_TAIL_TABLES)/

# Which images to label next: 186 labels in six rounds by every query strategy, on Office-31: 70 cells, more than half an hour on 2 cores. The cells
# are large and stay in asking/; tables of other SEEDS go to asking/tables. ASK=62 ASK_ROUNDS=2 ends after the second round, as the first table does.
ASK ?= 186
ASK_ROUNDS ?= 6
ASKING_TABLES ?= $(if $(filter 0$(comma)1$(comma)2$(comma)3$(comma)4,$(SEEDS)),docs/asking,asking/tables)
asking: install
	$(BIN)/qurate benchmark --suite office31 --data $(DATA)/office31 --backbone timm/tf_efficientnet_lite0 --weights $(WEIGHTS) \
	  --methods tml+adaptive --selectors none --ask $(ASK) --ask-rounds $(ASK_ROUNDS) --query-strategy none,random,probability,margin,clusters,density,degree,badge,committee,check --seeds $(SEEDS) --out asking
	$(BIN)/qurate report asking --out asking/tables
	@mkdir -p $(ASKING_TABLES)
	cp asking/results.csv $(ASKING_TABLES)/
	@test $(ASKING_TABLES) = asking/tables || cp asking/tables/tables.md asking/tables/tables.tex asking/tables/*.png $(ASKING_TABLES)/

# What the backbone is worth, on Office-31: 120 cells with three seeds, about an hour on 2 cores, the tables into
# docs/backbones.md; those of other seeds are printed.
BACKBONE_SEEDS ?= 0,1,2
LITE := timm/tf_efficientnet_lite
BACKBONES ?= $(LITE)0 $(LITE)1 $(LITE)2 $(LITE)0+$(LITE)2
BACKBONES_PAGE ?= $(if $(filter 0$(comma)1$(comma)2,$(BACKBONE_SEEDS)),--page docs/backbones.md)
backbones: install
	for name in $(BACKBONES); do \
	  $(BIN)/qurate benchmark --suite office31 --data $(DATA)/office31 --backbone $$name --weights $(WEIGHTS) \
	    --methods S+T,tml,tml+balanced,tml+dqn,tml+adaptive --selectors none --seeds $(BACKBONE_SEEDS) --out backbones/$$name || exit 1; \
	done
	$(BIN)/python benchmarks/backbones.py $(addprefix backbones/,$(BACKBONES)) --data $(DATA)/office31 --weights $(WEIGHTS) $(BACKBONES_PAGE)

# All methods, without a selector and with the default, and what people do with scikit-learn, on both development sets with one and three
# labels per class: some hours on 2 cores. Finished cells are kept in methods/, so it can be stopped, or begun with SEEDS=0 SHOTS=3.
SHOTS ?= 1,3
METHOD_ROWS ?= all,fitted,S+T+sla,mme+sla,tml+sla
methods: install
	$(BIN)/qurate benchmark --suite office31 --data $(DATA)/office31 --scenarios webcam:amazon --backbone $(LITE)0 --weights $(WEIGHTS) \
	  --methods "$(METHOD_ROWS)" --selectors none,adaptive --shots $(SHOTS) --seeds $(SEEDS) --out methods/office31
	$(BIN)/qurate benchmark --suite office_home --data $(DATA)/office_home --scenarios Clipart:Art --backbone $(LITE)0+$(LITE)2 --weights $(WEIGHTS) \
	  --methods "$(METHOD_ROWS)" --selectors none,adaptive --shots $(SHOTS) --seeds $(SEEDS) --out methods/office_home
	for suite in office31 office_home; do \
	  $(BIN)/qurate report methods/$$suite --reference "TML + adaptive" --out methods/$$suite/tables || exit 1; \
	done

# The report is tested in a real browser; without one those tests are skipped.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing chromium and chromium-driver for the tests of the report."; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; } >/dev/null \
	    || echo "They could not be installed; the browser tests will be skipped."; \
	else echo "No chromium and chromedriver here; the browser tests will be skipped. On Debian: apt-get install chromium chromium-driver"; fi

test: install browser
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto

# What qurate computes, to the last digit, against tests/golden/*.json: some minutes. WRITE=--write records it anew.
golden: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden.record $(WRITE)

# Signals at random moments, full disks, two commands at once: MINUTES of them, with counts of what survived.
MINUTES ?= 30
faults: install
	$(BIN)/python -m tests.reliability.faults --minutes $(MINUTES) --seed $(SEED)

# Hostile inputs to everything that is parsed: MINUTES of them, with counts of what came of it.
fuzz: install
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.reliability.fuzz --minutes $(MINUTES) --seed $(SEED)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The site of the documentation, in site/. Nothing is downloaded.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The tables of methods, selectors and query strategies in docs/methods.md and docs/asking.md, from qurate.registry.
docs-tables: install
	$(BIN)/python docs/scripts/registry_tables.py

# The picture in README.md: the page of the demo.
docs-picture: demo
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1100,1212 --screenshot=docs/images/report.png \
	  "file://$(abspath $(OUT))/run/report.html"

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
