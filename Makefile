# Building and testing relock. `make` or `make help` lists the targets.
#
# Plain POSIX sh and GNU make 3.81, which is what macOS has.

GO        ?= go
GOFMT     ?= $(shell $(GO) env GOROOT)/bin/gofmt
TIMEOUT   ?= 20m
TESTFLAGS ?=
FUZZTIME  ?= 10s
SOAK      ?= 5s
TORTURE   ?= 10s
PEER      ?=
FAKE      ?= 300
BENCH     ?= .
BENCHTIME ?= 1s
BENCHFLAGS ?=
RUN       ?=
VERSION   ?=
EXAMPLES  ?= ./examples/quickstart ./examples/nested ./examples/seckill ./examples/saga ./examples/cron ./examples/fencing
MVNFLAGS  ?= -q -B -ntp -Dstyle.color=never

# A test that needs a server fails without one. Run by hand, without make, it skips and says so.
export RELOCK_REQUIRE_REDIS := 1
# Nothing here rewrites go.mod or go.sum, and a go.work in a directory above changes nothing.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -mod=readonly)
export GOWORK := off

# Modules with a go.mod of their own. tools/ holds only the versions of the linters and has nothing to test.
# Expanded when used, so that a new module is found without naming it here.
MODULES = $(shell find . \( -path './.*' -o -path ./tools -o -name testdata -o -name vendor \) -prune \
	-o -name go.mod ! -path ./go.mod -print | sed 's,/go\.mod$$,,' | sort)
# Those of make race. interop needs Java, kubernetes builds an API server, soak and torture run for as long as they are told:
# each of these has a target of its own, and its Go code is checked with the rest.
TESTED = $(filter-out ./lab/interop/% ./store/kubernetes ./lab/soak ./lab/torture,$(MODULES))

# Not for the race detector: SQLite in modernc.org/sqlite/lib is C in the form of Go, and would be eight times slower;
# go-zookeeper/zk 1.0.4 has a race of its own when it connects again (sendSetWatches reads lastZxid). A package with
# generic code has to stay: what it instantiates without the detector may serve other packages, whose code then looks racy.
NORACE = -gcflags=modernc.org/sqlite/lib=-race=false -gcflags=github.com/go-zookeeper/...=-race=false
GOTEST = $(GO) test -race $(NORACE) -vet=off -count=1 -shuffle=on -timeout $(TIMEOUT) $(TESTFLAGS)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help check test test-all proof redis deps fmt fmt-check tidy-check vet lint unit race modules browser topology clocks each examples release-check release man interop kubernetes fuzz soak soak-faults soak-kept soak-table soak-fake soak-memory torture model tla pictures snippets bench gobench bench-check clean

help: ## Show this list
	@echo 'Usage: make TARGET [NAME=value ...]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'Values, with what they are now:'
	@echo '  FUZZTIME=$(FUZZTIME)  SOAK=$(SOAK)  FAKE=$(FAKE)  TIMEOUT=$(TIMEOUT) (of one go test)  TESTFLAGS=$(TESTFLAGS)'
	@echo '  BENCH=$(BENCH)  BENCHTIME=$(BENCHTIME)  RUN=$(RUN)  VERSION=$(VERSION)'

# Packages whose tests start no server: they import no package that does.
SERVERLESS = $(GO) list -f '{{join .TestImports " "}} {{join .XTestImports " "}} {{.ImportPath}}' ./... | \
	grep -v 'relock/internal/test/redistest\|relock/internal/test/dbtest' | sed 's/.* //'

# Packages with tests in fake time, but for the suites, whose fake clients are on real servers.
FAKETIME = $(GO) list -f '{{join .TestImports " "}} {{join .XTestImports " "}} {{.ImportPath}}' ./... | \
	grep 'testing/synctest\|relock/internal/test/stage ' | sed 's/.* //' | \
	grep -v 'internal/test/\(faults\|redis\|topology\)$$'

# What make test leaves to make test-all: several servers, failovers, databases.
SEVERAL = relock/store/quorum$$\|relock/internal/test/\(topology\|redistest\|dbtest\)$$

check: fmt-check ## gofmt, go vet and the tests in fake time of the root module: no server
	$(GO) vet ./...
	$(GO) test -timeout $(TIMEOUT) $(TESTFLAGS) $$($(SERVERLESS))

test: redis fmt-check ## Install Redis if it is missing; gofmt, go vet, the tests of the root module, a soak in fake time
	$(GO) vet ./...
	@$(MAKE) --no-print-directory unit soak-memory
	@echo 'make test: everything passed'

test-all: test deps tidy-check vet lint race browser examples release-check bench-check fuzz soak-faults interop ## Before a merge: make test, then every module on its servers with the race detector
	@echo 'make test-all: everything passed'

proof: deps clocks model soak torture bench ## Before a release: hours of tests of time, models, soak, torture and benchmarks
	@echo 'make proof: everything passed'

redis: # the one server of make test
	@sh tools/install-deps.sh redis

deps: ## Install what test-all needs and is missing: Redis, PostgreSQL, MariaDB, PgBouncer, ZooKeeper, etcd, a C compiler (-race), git, spin, prometheus, faketime
	@sh tools/install-deps.sh

fmt: ## Rewrite the Go files in gofmt's form
	$(GOFMT) -s -w .

fmt-check: ## Fail if a Go file is not in gofmt's form
	@files=$$($(GOFMT) -s -l .) || exit 1; \
	if [ -n "$$files" ]; then echo "not formatted, run 'make fmt':"; echo "$$files"; exit 1; fi

tidy-check: ## Fail if go mod tidy would change a module
	@for m in . $(MODULES) ./tools; do \
		echo "tidy $$m"; (cd "$$m" && $(GO) mod tidy -diff) || exit 1; \
	done

# Makes all modules one workspace for the rest of a command, which reads what they share only once.
WORKSPACE = tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; export GOWORK="$$tmp/go.work"; $(GO) work init . $(MODULES) || exit 1
PACKAGES  = ./... $(addsuffix /...,$(MODULES))

# Tests misuse locks on purpose, and so does what they share in internal/test: relockvet leaves both out.
vet: ## relockvet, every module; go vet is a part of lint
	@$(WORKSPACE); (cd cmd/relockvet && GOWORK=off $(GO) build -o "$$tmp" .) || exit 1; \
	packages=$$($(GO) list $(PACKAGES)) || exit 1; \
	"$$tmp/relockvet" -test=false $$(echo "$$packages" | grep -v /internal/test/)

# They read what race compiles, so that nothing is compiled for them alone.
lint: GOFLAGS += -race $(NORACE) -tags=kubernetes,browser
lint: ## go vet, staticcheck and errcheck, every module
	@$(WORKSPACE); GO="$(GO)" sh tools/lint.sh $(PACKAGES)

# Most of them wait most of the time, so many packages run at a time.
unit: ## Tests of the root module on one Redis, without the race detector
	$(GO) test -vet=off -count=1 -shuffle=on -p 12 -timeout $(TIMEOUT) $(TESTFLAGS) \
		$$($(GO) list ./... | grep -v '$(SEVERAL)')

# One workspace, so that the modules compile what they share once.
race: ## Tests of all modules with the race detector, but those of the next targets
	@$(WORKSPACE); \
	$(GOTEST) -p 6 ./... $(addsuffix /...,$(TESTED))

modules: ## Tests of the nested modules on their servers, without the race detector
	@$(WORKSPACE); $(GO) test -vet=off -count=1 -shuffle=on -p 4 -timeout $(TIMEOUT) $(TESTFLAGS) $(addsuffix /...,$(TESTED))

# They find hangs only elsewhere, see internal/test/bound.
clocks: ## Tests with their limits in real time, one package after the other, on a quiet machine
	@export RELOCK_CLOCKS=1; $(WORKSPACE); $(GOTEST) -p 1 -parallel 2 ./... $(addsuffix /...,$(TESTED))

each: # the modules EACH, one after the other, each on its own
	@for m in $(EACH); do \
		echo "test $$m"; (cd "$$m" && $(GOTEST) ./...) || exit 1; \
	done

browser: ## Install Chromium if it is missing; the page of module ui in it
	@sh tools/install-deps.sh browser
	cd ui && $(GO) test -tags browser -vet=off -count=1 -timeout $(TIMEOUT) $(TESTFLAGS) ./browser

examples: ## Run the examples of the root module, without a server
	@unset REDIS_URL; for e in $(EXAMPLES); do \
		echo "run $$e"; $(GO) run "$$e" || exit 1; \
	done

release-check: ## Make a release in a copy, import its libraries and install its command
	@GO="$(GO)" sh tools/release-check.sh

release: ## Commit and tag VERSION (v0.1.0), and say what to push
	@GO="$(GO)" sh tools/release.sh "$(VERSION)"

man: ## Write the man page of the command anew
	cd cmd/relock && $(GO) test -count=1 -run '^TestTheManPage' . -args -update

topology: ## Of race, only the suites on Sentinel, Cluster and TLS
	$(GOTEST) ./internal/test/topology

interop: ## Go and Java (Redisson, Curator) share locks: installs a JDK and Maven, builds, tests (not part of test)
	@sh tools/install-deps.sh java
	@for peer in redisson curator; do \
		(cd lab/interop/$$peer/java && mvn $(MVNFLAGS) compile) || { \
			echo "interop: Maven could not build lab/interop/$$peer/java. At its first run it needs a Maven repository,"; \
			echo 'interop: which is the central one unless your Maven settings name another.'; \
			exit 1; \
		} >&2; \
	done
	@# Most of its tests wait for leases, and do it together.
	cd lab/interop/redisson && $(GOTEST) -parallel 16 ./...
	cd lab/interop/curator && $(GOTEST) ./...

kubernetes: ## Locks in Leases of a real API server, which it builds from Go modules: minutes at first (not part of test; vet and lint are)
	@sh tools/install-deps.sh
	cd store/kubernetes && $(GOTEST) ./...
	@$(MAKE) --no-print-directory soak-faults STORE=kubernetes

fuzz: ## Run every fuzz function for FUZZTIME
	@GO="$(GO)" sh tools/fuzz.sh "$(FUZZTIME)"

soak: soak-faults soak-fake ## Both of the next two (test runs only the first one)

torture: ## Every lock library in every scenario, with trouble for TORTURE in each (RUN and PEER select): docs/TORTURE.md
	cd lab/torture && RELOCK_TORTURE=$(TORTURE) RELOCK_RUN='$(RUN)' RELOCK_PEER='$(PEER)' RELOCK_SEED=$(SEED) \
		$(if $(RUN)$(PEER),,RELOCK_PAGE=../../docs/TORTURE.md RELOCK_COMMIT=$$(git rev-parse --short HEAD)) $(GO) test -count=1 -timeout 0 -v .

# No limit of go test: it may be hours, and each wait in it has a limit of its own.
SOAKING = RELOCK_SOAK=$(SOAK) RELOCK_SEED=$(SEED)
SOAKTEST = $(GO) test $(if $(filter kubernetes,$(STORE)),-tags kubernetes) -race $(NORACE) -count=1 -timeout 0 -v
soak-faults: ## Lock at random among random faults in each world for SOAK, or in the world STORE, and check every history (SEED repeats the choices)
	cd lab/soak && $(SOAKING) $(SOAKTEST) $(if $(STORE),-run '^TestSoak$$/^$(STORE)$$' .,./...)

# Without the stores that need servers, and what they import.
soak-memory: ## The soak in fake time, in the process: it convicts broken stores, too
	cd lab/soak && $(SOAKING) $(GO) test -vet=off -tags memory -run InFakeTime -count=1 -timeout $(TIMEOUT) .

soak-kept: ## A soak of the world STORE with the result kept in lab/soak/results
	cd lab/soak && RELOCK_COMMIT=$$(git rev-parse --short HEAD) $(SOAKING) $(SOAKTEST) -run '^TestSoak$$/^$(STORE)$$' .

soak-table: ## Write the table of lab/soak/results into docs/GUARANTEES.md
	cd lab/soak && $(GO) test -count=1 -run TestThePageHasTheResults . -update

# Those of their packages that need a server find none, and skip.
soak-fake: ## Run each test in fake time FAKE times with the race detector: hours (a minute or two for each time on two cores)
	@rc=0; for m in . $(filter-out ./lab/soak ./store/kubernetes ./lab/interop/%,$(MODULES)); do \
		packages=$$(cd "$$m" && $(FAKETIME)) || continue; \
		(cd "$$m" && RELOCK_REQUIRE_REDIS= REDIS_SERVER=none $(GO) test -race $(NORACE) -count=$(FAKE) -shuffle=on -timeout 0 $(TESTFLAGS) $$packages) || rc=1; \
	done; exit $$rc

model: ## Check the model in lab/model
	@$(MAKE) -C lab/model

tla: ## Check the TLA+ state machine in lab/model/tla with TLC: installs a JDK and Maven (not part of test)
	@sh tools/install-deps.sh java
	@sh lab/model/tla/check.sh

snippets: ## Write the Go code on the pages from docs/code, where it is tested
	cd docs/code && $(GO) test -count=1 -run TestTheCodeOnThePages . -update

pictures: ## Draw the pictures of the documentation from their sources in docs/pictures
	$(GO) run ./docs/pictures

bench: ## Measure against the floor and the peers (half an hour; RUN=pair selects): lab/bench/results
	cd lab/bench && $(GO) run . $(if $(RUN),-run '$(RUN)') $(BENCHFLAGS)

gobench: ## Go benchmarks matching BENCH for BENCHTIME each, with allocations
	cd lab/bench && $(GO) test -run '^$$' -bench '$(BENCH)' -benchmem -benchtime $(BENCHTIME) -timeout 30m ./...

bench-check: ## Run every benchmark once, so that none of them rots
	@$(MAKE) --no-print-directory gobench BENCH=. BENCHTIME=1x

clean: ## Remove what builds, profiles and servers leave in the tree, and cached test results
	find . \( -path ./.git -o -name testdata \) -prune -o -type f \
		\( -name '*.test' -o -name '*.prof' -o -name '*.out' -o -name '*.rdb' -o -name '*.aof' \
		-o -name '*.trail' -o -path './lab/model/pan*' \) -exec rm -f {} +
	rm -rf lab/model/.build lab/interop/redisson/java/target lab/interop/curator/java/target
	rm -f lab/bench/bench cmd/relock/relock examples/observability/observability examples/transfer/transfer cmd/relockvet/relockvet
	$(GO) clean -testcache
