# The two commands that matter: `make demo` and `make test`. Each installs what
# it needs from Debian (as root or by sudo) and says so.

SHELL := /bin/bash
GO ?= go
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
export CGO_ENABLED = 0
# What takes longest begins first, and what mostly waits runs beside it.
UNIT := ./stagein/... ./fsclient/... ./deploy/... ./metadata/... ./datapath/... ./daemon/...
INTEGRATION := ./integration/testcluster ./integration/local ./integration/...
BESIDE := -parallel 3
# Decoders that are not ours and share nothing are not watched for races: they would take most of the time.
UNWATCHED := $(foreach p,github.com/ulikunitz/xz/... github.com/therootcompany/xz/... github.com/klauspost/compress/... compress/bzip2 compress/flate hash/crc64,-gcflags=$(p)=-race=false)

.PHONY: all build plugin python python-test dist slurm-headers packages demo check lint layers unit fuzz integration slurm-test model simulate soak huge test bench bench-stage bench-train bench-faults docs man clean help

all: build plugin ## build everything

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## the program, bin/bivouac
	$(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/bivouac ./deploy/bivouac

plugin: packages ## the Slurm plugin, bin/bivouac.so
	$(MAKE) -C spank OUT=$(CURDIR)/bin

PYTHON ?= /usr/bin/python3
PYSRC := pyproject.toml README.md bivouac
python: ## the Python package: a wheel and an sdist in bin
	integration/slurm/install-packages python3-setuptools python3-wheel
	rm -rf build/python && mkdir -p bin build/python && cp -r $(addprefix fsclient/python/,$(PYSRC)) LICENSE build/python
	cd build/python && $(PYTHON) -c 'import setuptools.build_meta as b; b.build_wheel("$(CURDIR)/bin"); b.build_sdist("$(CURDIR)/bin")'

dist: build plugin python ## bin/*.deb and bin/*.rpm
	deploy/package/build $(VERSION)

slurm-headers: packages ## the plugin built with the Slurm headers of Debian 12, 13 and unstable, from a mirror of Debian
	deploy/package/slurm-headers

python-test: ## flake8, mypy and the unit tests of the Python package
	integration/slurm/install-packages python3-setuptools python3-wheel python3-torch python3-torchvision python3-h5py flake8 mypy
	cd fsclient/python && flake8 . && mypy --cache-dir $(CURDIR)/build/mypy bivouac && $(PYTHON) -B -m unittest

packages: ## install the Debian packages that are missing
	integration/slurm/install-packages

demo: packages build plugin ## the main job, on a real Slurm of four nodes on this machine
	integration/slurm/demo

lint: ## gofmt, vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "gofmt would change:"; echo "$$out"; exit 1; }
	$(GO) vet -tags slurm ./...
	$(GO) tool staticcheck -tags slurm ./...

layers: ## the floor plan
	$(GO) test ./integration

unit: ## unit tests under the race detector
	integration/slurm/install-packages chromium-headless-shell
	CGO_ENABLED=1 $(GO) test -race $(UNWATCHED) -timeout 30m $(UNIT)

FUZZCOUNT ?= 1000
# A count of inputs ends a run and no deadline, which the fuzzer can miss (golang/go#75804). What is found is not made
# smaller (1x): that took nearly all of a short while.
fuzz: ## every fuzz target with so many inputs (FUZZCOUNT)
	@set -e; bin=$$(mktemp); trap 'rm -f $$bin' EXIT; cache=$$($(GO) env GOCACHE)/fuzz; \
	for p in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
	  $(GO) test -c -fuzz . -o $$bin $$p; path=$$($(GO) list $$p); \
	  for f in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' $$p/*_test.go | sed 's/func //'); do \
	    echo "fuzz $$p $$f"; \
	    (cd $$p; $$bin -test.run ^$$ -test.fuzz ^$$f\$$ -test.fuzztime $(FUZZCOUNT)x -test.fuzzminimizetime 1x -test.fuzzcachedir $$cache/$$path); \
	  done; done

check: packages lint layers python-test unit ## what every commit passes; minutes

integration: packages build ## clusters of processes, with real mounts
	$(GO) test -timeout 45m -count=1 $(BESIDE) $(INTEGRATION)

MODEL_TIME ?= 1h
MODEL_SEED ?= 0
model: ## random operations through several mounts against a model, for hours (MODEL_TIME, MODEL_SEED)
	$(GO) test -count=1 -v -timeout 0 -run '^TestModel|^TestConcurrent' ./integration/model -args -time $(MODEL_TIME) -seed $(MODEL_SEED)

SIMULATE_NODES ?= 4096
simulate: ## start, losses and a partition of large jobs on a virtual clock (SIMULATE_NODES)
	$(GO) test -count=1 -v -timeout 30m ./integration/simulate -args -nodes $(SIMULATE_NODES)

SOAK_TIME ?= 10m
SOAK_SEED ?= 0
soak: build ## reads, appends and checkpoints under killed and stopped daemons, cut links, full and failing drives, garbage and clock steps, then two lost nodes (SOAK_TIME, SOAK_SEED)
	$(GO) test -count=1 -v -timeout 0 ./integration/soak -args -time $(SOAK_TIME) -seed $(SOAK_SEED) -away 20 -losses

HUGE_ENTRIES ?= 1000000
huge: ## a directory of a million entries through the mounts of four nodes (HUGE_ENTRIES)
	$(GO) test -count=1 -v -timeout 0 -run '^TestHugeDirectory' ./integration/testcluster -args -entries $(HUGE_ENTRIES)

slurm-test: packages build plugin ## the life and death of jobs on a real Slurm
	$(GO) test -timeout 45m -count=1 $(BESIDE) -tags slurm ./integration/slurm/...

test: check fuzz dist ## everything
	$(GO) test -timeout 45m -count=1 $(BESIDE) -tags slurm ./integration/slurm $(INTEGRATION)

bench: packages build ## what it costs beside a loopback and bare Pebble; BENCH='--run find --quick' for less
	$(GO) build -trimpath -o bin/bench ./integration/bench
	bin/bench --bivouac bin/bivouac --json bin/bench.json $(BENCH)

bench-stage: packages build ## stage-in from a slow source, beside its bandwidth and tar; BENCH='--run cpu --quick' for less
	$(GO) build -trimpath -o bin/bench ./integration/bench
	bin/bench --stage --bivouac bin/bivouac --json bin/bench-stage.json $(BENCH)

bench-train: packages build ## PyTorch on four nodes, by order=seed:S, locality, replicas, beside the source; BENCH='--run ^train$$ --arms seed' for less
	integration/slurm/install-packages python3-torch
	$(GO) build -trimpath -o bin/bench ./integration/bench
	bin/bench --train --bivouac bin/bivouac --json bin/bench-train.json $(BENCH)

docs: ## the documentation as a static site, in build/docs
	$(GO) run ./deploy/docs/site --out build/docs

bench-faults: packages build ## 30 minutes of soak; what a killed daemon, a lost node, checksums and a second copy cost; BENCH='--run kill --quick' for less
	$(GO) build -trimpath -o bin/bench ./integration/bench
	$(GO) test -c -o bin/soak ./integration/soak
	bin/bench --faults --bivouac bin/bivouac --json bin/bench-faults.json $(BENCH)

man: build ## man pages into build/man
	bin/bivouac man --dir build/man

clean: ## remove what was built
	rm -rf bin build
	$(MAKE) -C spank OUT=$(CURDIR)/bin clean
