# Everything a developer or a user does with this tree. Each target sets up what it needs, and only once:
# stamps follow the lock files. Variables: LISTEN, ADMIN, STORE, CONFIG (for `make run`), ARGS (for pytest and bench).
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
# The structured-concurrency rules that ruff does not have. Left out: 106 (a style of imports), 109 (ports take deadlines
# where the caller knows them), 124 (ports are async where one implementation must be), and tests/, which set these very
# traps.
ASYNC_RULES := --enable=ASYNC1,ASYNC900 --disable=ASYNC106,ASYNC109,ASYNC124
# What they are about; a file without any of it would only take its second.
ASYNC_WORDS := 'async|await|trio|BaseException|except:'

SERVE := $(BIN)/stagedoor serve \
  $(if $(CONFIG),--config $(CONFIG)) $(if $(LISTEN),--listen $(LISTEN)) \
  $(if $(ADMIN),--admin $(ADMIN)) $(if $(STORE),--store $(STORE))

.PHONY: help setup run everyday test lint format reference bench chaos issuers lock test-tools redis nginx haproxy prometheus helm bwrap chromium clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: .venv/.stamp ## Make .venv from the committed lock and put the stagedoor command in it.

run: setup ## Start the gateway in the foreground, with its demo servers unless CONFIG names a file.
	@exec scripts/foreground.sh $(SERVE)

everyday: setup tests/node/.stamp .venv-servers/.stamp ## Start the gateway in front of servers that nobody here wrote.
	@exec scripts/everyday.sh $(SERVE)

# What most tests need is set up while those run that need none of it.
test: setup redis ## Check the style, and run every test.
	STYLE="$(MAKE) --no-print-directory lint" TOOLS="$(MAKE) --no-print-directory --jobs=4 test-tools" \
	  scripts/tests.sh $(BIN)/python $(ARGS)

lint: setup ## Check style, types and the structured-concurrency rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/async_rules.py $(ASYNC_RULES) $$(grep -lErw --include='*.py' $(ASYNC_WORDS) actors gateway stagedoor loadtest)

format: setup ## Put every file into the project's style.
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

reference: setup ## Write docs/api.md from the docstrings.
	$(BIN)/python scripts/reference.py

bench: setup redis .venv-peers/fastmcp/.stamp .venv-peers/mcp-proxy/.stamp ## Measure the gateway beside its floor and its peers.
	$(BIN)/python -m loadtest.run $(ARGS)

# Authorization servers on Java are part of it where they can be had.
chaos: setup test-tools $(if $(shell command -v mvn 2>/dev/null),build/issuers/.stamp) ## Run the long fault-injection tests, and the property tests on many examples that nobody tried yet.
	$(BIN)/python -m pytest -o faulthandler_timeout=7200 -m chaos $(ARGS)
	HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -o faulthandler_timeout=7200 -m hypothesis $(ARGS)

issuers: setup build/issuers/.stamp ## Try what goes to Keycloak and mock-oauth2-server (190 MB, by Maven).
	$(BIN)/python -m pytest -o faulthandler_timeout=3600 -m chaos tests/e2e/test_issuers.py $(ARGS)

lock: ## Resolve every lock file anew (needs uv).
	scripts/lock.sh

# What was fetched once is not asked for again: the lock says what it must be.
NPM_CI := npm ci --prefer-offline --no-audit --no-fund --loglevel=error

SDKS := $(patsubst tests/sdks/%.lock,.venv-sdks/%/.stamp,$(wildcard tests/sdks/*.lock))

# Clients and servers in other languages are built where their toolchains are; elsewhere their tests are skipped.
has = $(if $(shell command -v $(1) 2>/dev/null),$(2))
PEERS := $(foreach built,go:go rust:cargo jvm:mvn,$(call has,$(lastword $(subst :, ,$(built))),\
  build/peers/$(firstword $(subst :, ,$(built)))/.stamp))

test-tools: redis nginx haproxy prometheus helm bwrap chromium tests/node/.stamp .venv-servers/.stamp .venv-deploy/.stamp tests/deploy/models/.stamp $(SDKS) .venv-peers/fastmcp/.stamp $(PEERS)

redis:
	@scripts/need-redis.sh

nginx:
	@scripts/need-nginx.sh

haproxy:
	@scripts/need-haproxy.sh

bwrap:
	@scripts/need-bwrap.sh

chromium:
	@scripts/need-chromium.sh

prometheus:
	@scripts/need-prometheus.sh

helm:
	@scripts/need-helm.sh

clean: ## Remove everything that the other targets made.
	rm -rf .venv .venv-servers .venv-deploy .venv-sdks .venv-peers tests/node/node_modules tests/node/.stamp \
	  tests/deploy/models/node_modules tests/deploy/models/.stamp build var *.egg-info \
	  .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.stamp: requirements.lock pyproject.toml scripts/make-venv.sh
	@scripts/make-venv.sh .venv requirements.lock
	@echo "installing stagedoor itself: $(BIN)/stagedoor"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv-servers/.stamp: tests/servers/requirements.lock scripts/make-venv.sh | .venv/.stamp
	scripts/make-venv.sh .venv-servers tests/servers/requirements.lock $(BIN)/python
	@touch $@

.venv-deploy/.stamp: tests/deploy/requirements.lock scripts/make-venv.sh | .venv/.stamp
	scripts/make-venv.sh .venv-deploy tests/deploy/requirements.lock $(BIN)/python
	@touch $@

.venv-sdks/%/.stamp: tests/sdks/%.lock scripts/make-venv.sh | .venv/.stamp
	scripts/make-venv.sh .venv-sdks/$* tests/sdks/$*.lock $(BIN)/python
	@touch $@

.venv-peers/%/.stamp: loadtest/peers/%.lock scripts/make-venv.sh | .venv/.stamp
	scripts/make-venv.sh .venv-peers/$* loadtest/peers/$*.lock $(BIN)/python
	@touch $@

.SECONDEXPANSION:
build/peers/%/.stamp: scripts/make-peers.sh $$(shell find tests/e2e/peers/% -type f)
	scripts/make-peers.sh $* build/peers/$*
	@touch $@

build/issuers/.stamp: scripts/make-issuers.sh tests/e2e/issuers/pom.xml
	scripts/make-issuers.sh build/issuers
	@touch $@

tests/deploy/models/.stamp: tests/deploy/models/package-lock.json scripts/need-npm.sh
	scripts/need-npm.sh
	$(NPM_CI) --prefix tests/deploy/models
	@touch $@

tests/node/.stamp: tests/node/package-lock.json tests/node/package.json scripts/need-npm.sh
	scripts/need-npm.sh
	$(NPM_CI) --prefix tests/node
	@touch $@
