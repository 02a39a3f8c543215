PYTHON ?= python3
BIN    := .venv/bin
READY  := .venv/.ready
MORE   := .venv/.more
SITE   := .venv/.site
HDFS   := build/hdfs
AUDITED := .venv/.audited

JARS   := java/build/phalanx-hadoop.jar java/build/phalanx-spark.jar

.PHONY: help jar demo test test-all check fuzz parity soak format docs site lock audit bench clean

# The lock has the hashes of the files for one platform; elsewhere the newest versions are installed.
LOCK   := requirements-dev.lock
HERE    = $(shell $(PYTHON) -c 'import platform, sys; print("Python %d.%d on" % sys.version_info[:2], platform.system(), platform.machine())')

help:            ## show this help
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):[^#]*## /\1\t/' | expand -t 12

$(READY): pyproject.toml requirements-dev.lock setup.py $(wildcard src/phalanx/records/native/* src/phalanx/guard/*.c)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Phalanx needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@if head -1 $(LOCK) | grep -q 'For $(HERE)\.'; then set -x; \
	    $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement $(LOCK) && \
	    $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	else set -x; \
	    $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[cpu,dev,audit]'; \
	fi
	@touch $@

$(MORE): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[spark,ray,hdfs]'
	@touch $@

$(SITE): $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[site]'
	@touch $@

# No package that pip or apt installs has Hadoop's servers, but the sources of PySpark 2.4.8 have their jars.
$(HDFS): | $(READY)
	@rm -rf $@.part && mkdir -p $@.part
	$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	    --no-binary :all: --dest $@.part 'pyspark==2.4.8'
	@tar --extract --gzip --file $@.part/pyspark-*.tar.gz --directory $@.part --strip-components 3 \
	    --wildcards 'pyspark-*/deps/jars/*.jar' && rm $@.part/pyspark-*.tar.gz
	@mv $@.part $@

jar: $(JARS)     ## build the formats for Hadoop and Spark; HADOOP_JARS=DIR: against these jars

# The jars of a Hadoop or Spark installation, of the pyspark in .venv, or of a pyspark for this purpose alone.
HADOOP_JARS ?= $(shell ls -d .venv/lib/python3*/site-packages/pyspark/jars 2>/dev/null)

$(JARS) &: $(wildcard java/src/phalanx/*/*.java java/META-INF/services/*)
	@rm -rf java/build/classes java/build/*.jar && mkdir -p java/build/classes
	@jars="$(HADOOP_JARS)"; \
	if [ -z "$$jars" ]; then \
	    $(PYTHON) -m venv java/build/venv && \
	    java/build/venv/bin/pip install --quiet --disable-pip-version-check 'pyspark>=4.3,<4.4'; \
	    jars=$$(echo java/build/venv/lib/python3*/site-packages/pyspark/jars); \
	fi; \
	compile="javac -Xlint:all,-classfile,-path,-options -Werror -d java/build/classes"; \
	$$compile --release 11 -cp "$$jars/*" java/src/phalanx/hadoop/*.java && \
	jar --create --file java/build/phalanx-hadoop.jar -C java/build/classes phalanx && \
	if ls "$$jars"/spark-sql_2.13-4.*.jar >/dev/null 2>&1; then \
	    $$compile --release 17 -cp "java/build/classes:$$jars/*" java/src/phalanx/spark/*.java && \
	    jar --create --file java/build/phalanx-spark.jar -C java/build/classes phalanx -C java META-INF; \
	else \
	    echo "there is no Spark 4 in $$jars: built java/build/phalanx-hadoop.jar alone"; \
	fi

demo: $(READY)   ## train a ResNet on a local cluster of a chief, 2 workers and a ps
	@rm -rf runs/demo
	@$(BIN)/phalanx dataset synthetic --count 5000 --eval-count 1000 --out runs/demo/data
	@TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/phalanx run --workers 2 --ps 1 --log-dir runs/demo/logs \
	    examples/cifar10/main.py --data-dir runs/demo/data --model-dir runs/demo/model \
	    --num-layers 20 --schedule one-cycle --epochs 3 --learning-rate 0.05 --no-chief-trains \
	    --log-steps 20 --contact-sheet runs/demo/pictures.png

# Several files at once, in the order of the collection: those that start clusters come first. Many
# tests wait for processes, so there is one process more than there are processors, and at most 4.
FAST   := $(BIN)/pytest -m 'not slow' -n $(shell n=$$(($$(nproc) + 1)); echo $$((n < 4 ? n : 4))) \
    --dist loadfile --no-loadscope-reorder

test: $(READY)   ## check the code, then run the test suite
	@$(MAKE) --no-print-directory check
	$(FAST)

# Real servers and clusters of TensorFlow processes: two files at once, those with most tests first.
SLOW   := $(BIN)/pytest -m slow -n 2 --dist loadfile
TABLE  := --continue-on-collection-errors --suite-table build/suites.json

test-all:        ## also run the slow tests, against real servers; as root on Debian, installs these
	@PYTHON=$(PYTHON) tests/servers/install.sh
	@$(MAKE) --no-print-directory $(MORE) $(SITE) $(JARS)
	-@$(MAKE) --no-print-directory $(HDFS)
	@$(MAKE) --no-print-directory check
	@rm -f build/suites.json
	@set -x; $(FAST) $(TABLE); fast=$$?; \
	    $(SLOW) $(TABLE) && exit $$fast

check: $(READY) $(AUDITED) ## check format, lint, types, docs and, after a change of the lock, its packages
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy --no-error-summary
	$(BIN)/python docs/generate.py --check

fuzz: $(READY)   ## try 100,000 inputs of each kind that Phalanx reads from others
	PHALANX_FUZZ=100000 $(BIN)/pytest --timeout=0 -n auto --dist loadfile --durations=0 --durations-min=1 tests/security/fuzz_*.py

parity: $(READY) ## compare fit with Keras: every case in every mode, where test-all rotates the modes
	PHALANX_ALL_MODES=1 $(BIN)/pytest -m 'slow or not slow' tests/parity

soak: $(READY)   ## run a job under a fault every 20 seconds, for an hour; SOAK="--seconds 300": shorter
	$(BIN)/python tools/soak.py $(SOAK)

format: $(READY) ## format the code and sort the imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(READY)   ## write docs/cli.md from the --help of every command
	$(BIN)/python docs/generate.py

site: $(SITE)    ## build the documentation site in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "built: open build/site/index.html"

lock: $(READY)   ## write requirements-dev.lock from pyproject.toml, with the newest versions
	$(BIN)/python tools/lock.py

$(AUDITED): $(LOCK) | $(READY)
	$(BIN)/python tools/audit.py
	@touch $@

audit: $(READY)  ## look for known vulnerabilities in the locked packages, and write an SBOM
	$(BIN)/python tools/audit.py

bench: $(MORE) $(JARS) ## measure every published figure
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:           ## remove the virtual environment and build outputs
	rm -rf .venv build dist java/build src/*.egg-info src/phalanx/records/*.so src/phalanx/guard/*.so
