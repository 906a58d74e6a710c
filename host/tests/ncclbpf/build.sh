#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# build.sh REPO OUT: takes the policies out of a clone of NCCLbpf (eunomia-bpf/nccl-eBPF), compiles each to an
# object, and natively to a program whose output is the trace that ncclbpf.rs compares with. Nothing of it is kept here.
#
#     host/tests/ncclbpf/build.sh ../nccl-eBPF /tmp/nb
#     RINGFENCE_NCCLBPF=/tmp/nb cargo test -p ringfence-host --test ncclbpf
set -eu
repo=$1 out=$2 here=$(cd "$(dirname "$0")" && pwd)
clang=${CLANG:-$(command -v clang-19 || command -v clang)}
mkdir -p "$out/src"
for file in $(git -C "$repo" ls-tree --name-only HEAD src/ebpf-policies/); do
	git -C "$repo" show "HEAD:$file" >"$out/src/$(basename "$file")"
done
for source in "$out"/src/*.bpf.c; do
	name=$(basename "$source" .bpf.c)
	"$clang" -target bpf -O2 -g -c "$source" -o "$out/$name.bpf.o"
	case $name in
	bad_channels) ;;
	bad_* | cpu_aware) continue ;; # refused, or fed by a map of its own kernel program
	esac
	policy=$(sed -n 's/^uint64_t \([a-z0-9_]*\)(struct nccl_policy_ctx \*.*/\1/p' "$source")
	flags="-DPOLICY=$policy"
	grep -q telemetry_map "$source" && flags="$flags -DTELEMETRY"
	grep -q config_map "$source" && flags="$flags -DCONFIG"
	# shellcheck disable=SC2086 # the flags are words
	"$clang" -w -O1 -D__BPF__ -include "$source" $flags "$here/native.c" -o "$out/$name.native"
	"$out/$name.native" >"$out/$name.trace"
done
