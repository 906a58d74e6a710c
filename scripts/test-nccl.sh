#!/usr/bin/env bash
# test-nccl.sh PLUGIN.so POLICIES VERSION...: the scenarios of tests/nccl with these NCCL releases. Called by `make test-nccl`.
set -euo pipefail
export RINGFENCE_SO=$1 RINGFENCE_POLICIES=$2
RINGFENCE_BIN=$(dirname "$1")
export RINGFENCE_BIN
shift 2
RINGFENCE_NCCL_LIBS=$("$(dirname "$0")"/nccl-wheels.sh "$@")
export RINGFENCE_NCCL_LIBS
cargo=${CARGO:-cargo}
if "$cargo" nextest --version >/dev/null 2>&1; then
    # Without a library there are no trials, which is not an error: nccl-wheels.sh said why.
    exec "$cargo" nextest run --locked -p ringfence-nccl --no-fail-fast --no-tests pass
fi
exec "$cargo" test --locked -p ringfence-nccl --no-fail-fast --lib --tests
