#!/usr/bin/env bash
# demo.sh CLI PLUGIN.so POLICIES: the product at work, readable in a minute. Called by `make demo`.
set -euo pipefail
cli=$1 so=$2 policies=$3

step() { printf '\n\033[1m== %s\033[0m\n\n' "$1"; }
note() { printf '\n   %s\n' "$@"; }
show() { printf '$ %s\n' "ringfence ${*//$policies\//}"; "$cli" "$@"; }

step "1. Before a policy runs, it is proved safe"
show check "$policies"/size_aware.bpf.o "$policies"/lookup_update.bpf.o "$policies"/slo_enforcer.bpf.o "$policies"/size_aware_rs.bpf.o

step "2. What cannot be proved is refused, with the line of source and what to change"
code=0
show check "$policies"/reject/*.bpf.o || code=$?
if [ "$code" != 1 ]; then
    echo "demo: every policy under reject/ should have been refused (exit code 1), but the code was $code" >&2
    exit 1
fi

step "3. One decision: 4 MiB AllReduce on eight ranks"
show run "$policies"/size_aware.bpf.o --set n_bytes=4M --set n_ranks=8

step "4. A training step's collectives through the real .so, by its exported symbols, with a reload in mid-run"
note "Four threads call while ring_simple_all replaces size_aware. Communicators of one rank switch at their next call."
show replay --plugin "$so" --policy "$policies/size_aware.bpf.o" --trace tests/traces/demo.csv \
    --ranks 1 --comms 4 --threads 4 --reload-at 10000 --with "$policies/ring_simple_all.bpf.o"

step "5. Eight ranks: all must decide alike, so the new policy comes with new communicators"
show replay --plugin "$so" --policy "$policies/size_aware.bpf.o" --trace tests/traces/demo.csv \
    --ranks 8 --comms 2 --threads 2 --calls 4000 --reload-at 2000 --with "$policies/nvlink_ring_mid.bpf.o"

# A real NCCL, if `make test-nccl` (or `make test`) has left one in the cache; nothing is downloaded for a demo.
NCCL_VERSION=2.30.7
RINGFENCE_NCCL_LIBS=$(scripts/nccl-wheels.sh --cached "$NCCL_VERSION")
if [ -n "$RINGFENCE_NCCL_LIBS" ]; then
    step "6. NCCL $NCCL_VERSION itself calls the plugin, on this machine without a GPU"
    export RINGFENCE_NCCL_LIBS
    RINGFENCE_SO=$so RINGFENCE_POLICIES=$policies RINGFENCE_BIN=$(dirname "$cli") \
        "${CARGO:-cargo}" run --quiet --locked -p ringfence-nccl -- demo
else
    note "(With NCCL in the cache, which \`make test-nccl VERSIONS=$NCCL_VERSION\` downloads, the demo also shows NCCL itself call the plugin.)"
fi

step "7. What NCCL would load here, and why not"
NCCL_TUNER_PLUGIN=$PWD/$so RINGFENCE_POLICY=$policies/size_aware.bpf.o "$cli" doctor --plugin "$so" --policy "$policies/size_aware.bpf.o" || true

note "Done. Next: README.md (use it with NCCL), policies/README.md (write a policy), docs/cli.md (every command)."
