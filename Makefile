# The two commands of the README are `make up` and `make test`; `make help` lists the rest.
CARGO ?= cargo
DIR   ?= var

.PHONY: help up test prepare build package bench man clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

up: build ## build, then run a server and an agent on this machine (data in ./var, Ctrl-C stops both)
	@exec target/release/wholegrain up --dir $(DIR)

build: ## release binaries in target/release
	$(CARGO) build --release --locked -p wholegrain
	$(CARGO) build --profile agent --locked -p wholegrain-agent
	@install target/agent/wholegrain-agent target/release/wholegrain-agent

package: build ## Debian packages of server and agent in target/package
	@packaging/deb/build

prepare: ## install what the tests need and this machine lacks (Debian and Python packages)
	@testing/prepare

test: prepare ## run every test
	$(CARGO) build --workspace --locked
	$(CARGO) test --workspace --locked --no-fail-fast --lib --bins --tests

bench: prepare build ## run every benchmark (minutes); prints ratios and writes target/bench/*.json
	$(CARGO) build --release --locked -p wholegrain-bench
	@target/release/wholegrain-bench all

man: ## manual pages in target/man
	$(CARGO) run --locked -q -p wholegrain -- man --dir target/man

clean: ## remove what was built (not ./var)
	$(CARGO) clean
	rm -rf .venv
