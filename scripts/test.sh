#!/usr/bin/env bash
# test.sh PLUGIN.so POLICIES: all tests of the workspace; the last lines are the runner's own summary.
set -euo pipefail
export RINGFENCE_SO=$1 RINGFENCE_POLICIES=$2
RINGFENCE_BIN=$(dirname "$1") # the CLI beside it; else its tests would build one of their own
export RINGFENCE_BIN
# The assembled bpf_conformance vectors are not part of this repository; use them where they lie beside it.
if [ -z "${RINGFENCE_CONFORMANCE_DIR:-}" ] && [ -f ../shared/data/bpf_conformance.jsonl ]; then
    RINGFENCE_CONFORMANCE_DIR=$(cd ../shared/data && pwd)
    export RINGFENCE_CONFORMANCE_DIR
fi
# Real NCCL releases, without a GPU: one here, three in CI, none with NCCL_WHEELS=0; `make test-nccl` takes all.
if [ "${NCCL_WHEELS:-1}" != 0 ]; then
    if [ "${CI:-}" = true ]; then versions="2.28.9 2.30.7 2.32.3"; else versions=2.30.7; fi
    # shellcheck disable=SC2086 # a list
    RINGFENCE_NCCL_LIBS=$("$(dirname "$0")"/nccl-wheels.sh $versions)
    export RINGFENCE_NCCL_LIBS
fi
cargo=${CARGO:-cargo}
# The index of hash maps under loom, in a workspace of its own.
"$cargo" test --locked --quiet --manifest-path tests/loom/Cargo.toml --target-dir target/loom
if "$cargo" nextest --version >/dev/null 2>&1; then
    exec "$cargo" nextest run --locked --workspace --no-fail-fast
fi
# nextest gives each test a process of its own. Without it one test's policy call may be under way while another inserts into a hash, which
# then rightly gets -EBUSY (the epochs of deleted entries belong to the process): one test at a time.
exec "$cargo" test --locked --workspace --no-fail-fast --lib --bins --tests -- --test-threads=1
