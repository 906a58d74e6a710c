# Ringfence: build, demo, test, bench, install. `make help` lists the targets.
# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
OUT     := $(CURDIR)/target/policies
SO      := target/release/libnccl_ringfence.so
CLI     := target/release/ringfence

NCCL_VERSIONS := 2.27.7 2.28.9 2.29.7 2.30.7 2.32.3

.PHONY: help build deps release policies demo demo-loop test test-nccl nccl-table lint test-doc bench install soak soak-profiler clean

help:
	@echo "make build     the plugin, the CLI, the conformance binary and every policy's object"
	@echo "make demo      a workload of collectives through the real .so, with a reload in mid-run"
	@echo "make demo-loop the closed loop: channels step down under contention, and back"
	@echo "make test      formatting, lints, documentation tests and all tests"
	@echo "make test-nccl real NCCL releases call the plugin, without a GPU: VERSIONS=\"$(NCCL_VERSIONS)\""
	@echo "make bench     CPU time of a decision against a native plugin and rbpf, in one run"
	@echo "make soak      10^8 events through the profiler; ten million generated programs against the verifier"
	@echo "make install   into PREFIX (now $(PREFIX))"

deps:
	@scripts/deps.sh

build: deps release policies

# What NCCL opens, the command line, and the bpf_conformance plugin.
release: deps
	$(CARGO) build --release --locked -p nccl-ringfence -p ringfence-capi -p ringfence-host -p ringfence-tests --lib --bins

policies: deps
	$(MAKE) -C policies OUT=$(OUT) CARGO=$(CARGO)

demo: build
	@scripts/demo.sh $(CLI) $(SO) $(OUT)

demo-loop: build
	@$(CLI) replay --plugin $(SO) --policy $(OUT)/closed_loop.bpf.o --trace tests/traces/loop.csv --ranks 8 --simulate

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

test-doc:
	$(CARGO) test --locked --workspace --doc

# The tests drive the release .so and the objects that `make build` made; they
# end in nextest's (or cargo's) summary.
test: build lint test-doc
	@scripts/test.sh $(CURDIR)/$(SO) $(OUT)

# Wheels are downloaded into a cache (scripts/nccl-wheels.sh); BLESS=1 records what the versions do.
test-nccl: build
	@scripts/test-nccl.sh $(CURDIR)/$(SO) $(OUT) $(or $(VERSIONS),$(NCCL_VERSIONS))

nccl-table:
	$(CARGO) run --quiet --locked -p ringfence-nccl -- report

bench: build
	$(CARGO) bench --locked -p ringfence-benches

soak: soak-profiler test-nccl
	$(CARGO) build --release --locked -p ringfence-soak
	target/release/ringfence-soak $(or $(SOAK_PROGRAMS),10000000) $(or $(SOAK_SEED),1)
	RINGFENCE_DOMAIN_STEP=$(or $(SOAK_STEP),1) $(CARGO) test --release --locked -p ringfence-translator --lib --features asm,interp domain::
	RINGFENCE_LINEAR_ROUNDS=$(or $(SOAK_ROUNDS),5000) RINGFENCE_KERNEL_OPS=$(or $(SOAK_OPS),200000) $(CARGO) test --release --locked -p ringfence-tests --test maps_linear --test kernel_maps
	RINGFENCE_LOOM_PREEMPTIONS=8 $(CARGO) test --locked --manifest-path tests/loom/Cargo.toml --target-dir target/loom
	RINGFENCE_MUTANTS=1 $(CARGO) test --release --locked -p ringfence-translator --lib --features asm,interp mutation:: -- --nocapture

# A week's worth of events through the profiler, with policies on both of its hooks.
soak-profiler: policies
	$(CARGO) build --release --locked -p ringfence-benches --bin ringfence-profiler-soak
	mkdir -p target/soak-profiler
	cp $(OUT)/latency_map.bpf.o $(OUT)/event_count.bpf.o target/soak-profiler/
	printf '[[policy]]\nfile = "latency_map.bpf.o"\n[[policy]]\nfile = "event_count.bpf.o"\nevents = ["coll", "proxy_op", "proxy_step"]\n' > target/soak-profiler/ringfence.toml
	RINGFENCE_POLICY=target/soak-profiler target/release/ringfence-profiler-soak $(or $(SOAK_EVENTS),100000000)

install: build
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/ringfence/policies
	install -m 755 $(CLI) $(DESTDIR)$(PREFIX)/bin/ringfence
	install -m 755 $(SO) $(DESTDIR)$(PREFIX)/lib/libnccl-tuner-ringfence.so
	for kind in profiler net env; do ln -sf libnccl-tuner-ringfence.so $(DESTDIR)$(PREFIX)/lib/libnccl-$$kind-ringfence.so; done
	install -m 644 policies/include/ringfence.h $(DESTDIR)$(PREFIX)/include/ringfence.h
	install -m 755 target/release/libringfence.so $(DESTDIR)$(PREFIX)/lib/libringfence.so.0
	ln -sf libringfence.so.0 $(DESTDIR)$(PREFIX)/lib/libringfence.so
	install -m 644 target/release/libringfence.a $(DESTDIR)$(PREFIX)/lib/libringfence.a
	install -m 644 host/capi/include/ringfence_host.h $(DESTDIR)$(PREFIX)/include/ringfence_host.h
	install -m 644 $(OUT)/*.bpf.o $(DESTDIR)$(PREFIX)/share/ringfence/policies/

clean:
	$(CARGO) clean
