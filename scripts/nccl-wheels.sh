#!/usr/bin/env bash
# nccl-wheels.sh [--cached] VERSION...: NCCL libraries from NVIDIA's wheels, in a cache; prints them as RINGFENCE_NCCL_LIBS expects.
# With --cached nothing is downloaded: those that are there.
#
# Only libnccl.so.2 of a wheel is kept (the wheel has 200 to 320 MB). It must have the checksum that the wheel's own list gives it,
# and, for a version of tests/nccl/wheels.sha256, the one that is committed there. Nothing of NVIDIA's is in this repository.
# Versions that cannot be had are left out, with one line on stderr that says why; that is not an error, so that `make test` works
# without a network.
set -euo pipefail

package=nvidia-nccl-cu13
cache=${RINGFENCE_NCCL_CACHE:-${XDG_CACHE_HOME:-${HOME:-}/.cache}/ringfence/nccl}
known=$(dirname "$0")/../tests/nccl/wheels.sha256

skip() { echo "nccl-wheels: SKIPPED $*" >&2; }

if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    skip "NCCL's tests: the fake GPU is for Linux on x86-64, and this is $(uname -s) on $(uname -m)"
    exit 0
fi

sha256() { sha256sum "$1" | cut -d' ' -f1; }

# expected VERSION: the committed checksum, or nothing.
expected() { awk -v version="$1" '$2 == version { print $1 }' "$known"; }

# download VERSION DIRECTORY: the wheel, by pip, which checks what its index says about the file.
download() {
    local pip_log=$2/pip.log
    if ! command -v python3 >/dev/null || ! python3 -m pip --version >/dev/null 2>&1; then
        skip "NCCL $1: python3 with pip is needed to download its wheel"
        return 1
    fi
    if ! timeout "${RINGFENCE_NCCL_TIMEOUT:-600}" python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-cache-dir \
        --only-binary=:all: --dest "$2" "$package==$1" >"$pip_log" 2>&1 </dev/null; then
        skip "NCCL $1: pip could not download $package==$1: $(grep -v '^$' "$pip_log" | tail -n 1)"
        return 1
    fi
}

# unpack WHEEL OUT: the library alone, held against the wheel's RECORD.
unpack() {
    python3 - "$1" "$2" <<'PY'
import base64, csv, hashlib, io, sys, zipfile

wheel, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    (member,) = [n for n in z.namelist() if n.endswith("/libnccl.so.2")]
    (record,) = [n for n in z.namelist() if n.endswith(".dist-info/RECORD")]
    rows = csv.reader(io.TextIOWrapper(z.open(record), "utf-8"))
    (listed,) = [row[1] for row in rows if row[0] == member]
    digest = hashlib.sha256()
    with z.open(member) as source, open(out, "wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
actual = "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()
if actual != listed:
    sys.exit(f"{member}: {actual}, but the wheel lists {listed}")
PY
}

# fetch VERSION: makes $cache/VERSION/libnccl.so.2 appear, whole or not at all.
fetch() {
    local version=$1 temporary want got
    temporary=$(mktemp -d "$cache/.$version.XXXXXX") || return 1
    # shellcheck disable=SC2064 # the path of now
    trap "rm -rf '$temporary'" RETURN
    download "$version" "$temporary" || return 1
    if ! unpack "$temporary"/*.whl "$temporary/libnccl.so.2" 2>"$temporary/error"; then
        skip "NCCL $version: the wheel is not as it should be: $(tail -n 1 "$temporary/error")"
        return 1
    fi
    want=$(expected "$version")
    got=$(sha256 "$temporary/libnccl.so.2")
    if [ -n "$want" ] && [ "$want" != "$got" ]; then
        skip "NCCL $version: libnccl.so.2 has sha256 $got, not the $want of $known"
        return 1
    fi
    mkdir -p "$cache/$version" && mv "$temporary/libnccl.so.2" "$cache/$version/libnccl.so.2"
}

fetch=fetch
if [ "${1:-}" = --cached ]; then
    fetch=false
    shift
fi
if ! { mkdir -p "$cache" && : >>"$cache/.lock"; } 2>/dev/null; then
    skip "NCCL's tests: $cache cannot be written (RINGFENCE_NCCL_CACHE names another directory)"
    exit 0
fi
found=()
for version; do
    if ! [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
        echo "nccl-wheels: '$version' is not a version such as 2.30.7" >&2
        exit 2
    fi
    library=$cache/$version/libnccl.so.2
    # One download at a time, also among several runs; the second finds what the first left.
    exec 9>"$cache/.lock"
    flock 9
    # What a run that was killed left behind: nobody else is here now.
    rm -rf "$cache"/.[0-9]*
    if [ -s "$library" ] || "$fetch" "$version"; then found+=("$version=$library"); fi
    exec 9>&-
done
(IFS=:; echo "${found[*]:-}")
