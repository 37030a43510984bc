# make test runs every test; make lint the style tools; make help lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

.PHONY: help build test test-go test-e2e lint bench fuzz

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

build: ## build bin/warden
	CGO_ENABLED=0 go build -trimpath -o bin/warden ./cmd/warden

test: test-go test-e2e ## all tests

test-go: ## the Go tests, with the race detector
	go test -race ./...

test-e2e: ## real clients and a browser against a whole process; installs what it can
	./e2e/run

lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l cmd internal e2e); if [ -n "$$out" ]; then echo "gofmt would change:"; echo "$$out"; exit 1; fi
	go vet ./...
	cd e2e && go vet ./...
	go tool -modfile=tools/go.mod staticcheck ./...

bench: ## the benchmarks behind docs/performance.md
	go test -run '^$$' -bench . -benchmem ./internal/...
