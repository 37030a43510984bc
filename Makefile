# make test runs every test; make lint the style tools; make help lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help
FUZZTIME ?= 30s
PEERBENCH ?= ../shared/tools/peerbench
SCEN ?= cpu,rss,loss,stay,outage,restart,burst,hot,lat

.PHONY: help build test test-go test-e2e test-vllm test-llamacpp test-live test-loadclients lint bench fuzz chaos soak

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build bin/warden
	CGO_ENABLED=0 go build -trimpath -o bin/warden ./cmd/warden

test: test-go test-e2e ## all tests

test-go: ## the Go tests, with the race detector
	go test -race ./...

test-e2e: ## real clients and a browser against a whole process; installs what it can
	./e2e/run

test-vllm: ## the gateway in front of a real vLLM on the CPU; installs it (6 GB)
	bin=$$(./e2e/vllm/install) && cd e2e && VLLM_BIN=$$bin go test -count=1 -timeout 40m -v ./vllm

test-llamacpp: ## the gateway in front of real llama-servers on the CPU; installs them (150 MB)
	bin=$$(./e2e/llamacpp/install) && cd e2e && LLAMA_SERVER_BIN=$$bin go test -count=1 -timeout 10m -v ./llamacpp

test-loadclients: ## aiperf and guidellm through the gateway; installs them (6 GB)
	@if bin=$$(./e2e/loadclients/install); then \
		cd e2e && LOADCLIENTS_BIN=$$bin go test -count=1 -timeout 45m -v ./loadclients; \
	else \
		echo "test-loadclients: skipped, the load clients could not be installed"; \
	fi

lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l cmd internal e2e); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	go vet ./...
	cd e2e && go vet ./...
	go tool -modfile=tools/go.mod staticcheck ./...

screenshots: build ## the pictures of docs/screenshots, of a demo under load; ten minutes
	cd e2e && go run ./screenshots -warden ../bin/warden -out ../docs/screenshots

test-live: ## the published measurement live and in virtual time, as many runs as chance needs
	LMWARDEN_LIVE_LONG=1 go test -count=1 -timeout 10m -run '^TestLiveAgreesWithVirtualTime$$' -v ./internal/app

fuzz: ## every fuzz target in turn, FUZZTIME each (30s)
	@grep -rn --include='*_test.go' '^func Fuzz' internal | sed -E 's,/[^/]*_test\.go:[0-9]+:func (Fuzz[A-Za-z0-9_]+).*, \1,' | sort | \
	while read -r dir target; do \
		echo "$$dir $$target"; \
		nice -n 10 go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 5s "./$$dir" || exit 1; \
	done

chaos: ## 100,000 requests while engines fail and the gateway is restarted
	LMWARDEN_CHAOS_REQUESTS=100000 go test -count=1 -timeout 20m -run '^TestChaos$$' -v ./internal/faults

soak: ## a day of traffic, 200,000 requests, and 5,000 streams at once
	LMWARDEN_SOAK_REQUESTS=200000 LMWARDEN_SOAK_STREAMS=5000 go test -count=1 -timeout 20m \
		-run '^(TestADayOfTrafficLeavesNothingBehind|TestThousandsOfStreamsAreOpenAtOnce)$$' -v ./internal/faults

bench: build ## the benchmarks of docs/performance.md, and the gateway beside HAProxy
	go test -run '^$$' -bench . -benchmem ./internal/...
	@if ! test -x $(PEERBENCH)/run.sh; then \
		echo "beside HAProxy: skipped, there is no $(PEERBENCH)/run.sh (set PEERBENCH)"; \
	elif ! command -v haproxy >/dev/null; then \
		echo "beside HAProxy: skipped, haproxy is not installed"; \
	else \
		out=$$(mktemp -d) && OUT=$$out SCEN=$(SCEN) $(PEERBENCH)/run.sh warden http://127.0.0.1:21180 \
			"$(CURDIR)/bin/warden serve --listen 127.0.0.1:21180 --admin-listen 127.0.0.1:21181 --data $$out/state --log-level warn \
			$(foreach port,21001 21002 21003 21004,--engine http://127.0.0.1:$(port))" -ready /health; \
	fi
