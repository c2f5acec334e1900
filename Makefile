# The two commands of the README are `make up` and `make test`; `make help` lists the rest.
CARGO ?= cargo
DIR   ?= var
FACILITY ?= var-facility
# Crates of plug-ins are those that make a shared object.
PLUGINS ?= $(notdir $(patsubst %/Cargo.toml,%,$(shell grep -l '"cdylib"' plugins/*/Cargo.toml)))

.PHONY: help up up-cluster demo demo-facility test prepare build plugins package bench bench-all bench-full bench-build report figures man clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 23

up: build ## build, then run a server and an agent on this machine (data in ./var, Ctrl-C stops both)
	@exec target/release/wholegrain up --dir $(DIR)

demo: build ## the same with a demonstration centre beside this machine
	@exec target/release/wholegrain up --demo

demo-facility: PLUGINS = bacnet modbus rest snmp
demo-facility: build plugins ## build, then run a plant of SNMP, Modbus, BACnet and REST devices with an agent and a server (data in ./var-facility)
	@exec demo/facility/run $(FACILITY)

up-cluster: build ## build, then run three servers over three nodes of Cassandra on this machine (data in ./var-cluster)
	@exec demo/cluster/run

build: ## release binaries in target/release
	$(CARGO) build --release --locked -p wholegrain
	$(CARGO) build --profile agent --locked -p wholegrain-agent
	@install target/agent/wholegrain-agent target/release/wholegrain-agent

plugins: ## plug-ins of the agent as target/release/plugins/NAME.so
	$(CARGO) build --release --locked $(PLUGINS:%=-p wholegrain-plugin-%)
	@install -d -m 0755 target/release/plugins
	@for name in $(PLUGINS); do install -m 0644 target/release/libwholegrain_plugin_$$name.so target/release/plugins/$$name.so || exit; done

package: build plugins ## packages of client, server, agent and plug-ins in target/package: deb, and rpm where rpmbuild is
	@packaging/build

prepare: ## install what the tests need and this machine lacks (Debian and Python packages)
	@testing/prepare

test: prepare ## run every test
	$(CARGO) build --workspace --locked
	$(CARGO) build --profile hot-paths --locked -p wholegrain-hot-paths
	$(CARGO) test --workspace --locked --no-fail-fast --lib --bins --tests

bench: bench-build ## the overhead experiment and what is beside it, shortened (about half an hour); a report in target/bench
	@bench/run quick

bench-all: bench-build ## every other benchmark, one after the other (half an hour); writes target/bench/*.json
	@target/release/wholegrain-bench all

bench-full: bench-build ## the whole experiment and every benchmark (many hours; started again it goes on); a report in target/bench
	@bench/run full

report: prepare ## the page of what benchmarks have left in target/bench
	@PYTHONPATH=bench .venv/bin/python -m report --dir target/bench

figures: prepare ## docs/figures.md from the results in target/bench that are newer than its own
	@PYTHONPATH=bench .venv/bin/python -m report.published --dir target/bench

bench-build: prepare build
	@bench/prepare
	$(CARGO) build --release --locked -p wholegrain-bench

man: ## manual pages in target/man
	$(CARGO) run --locked -q -p wholegrain -- man --dir target/man

clean: ## remove what was built (not ./var)
	$(CARGO) clean
	rm -rf .venv
