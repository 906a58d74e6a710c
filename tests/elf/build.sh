#!/bin/sh
# Rebuilds the ELF fixtures beside this script, in place. Needs clang 19 and its llvm-strip (or CLANG=, STRIP=).
# The objects are committed, so that tests need no compiler; paths in them are relative.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-19}
strip=${STRIP:-llvm-strip-19}

compile() { # CPU SOURCE OBJECT FLAGS...
	cpu=$1 source=$2 object=$3
	shift 3
	"$clang" -target bpfel -mcpu="$cpu" -O2 -g -Wall -Wno-unused-variable -Wno-unused-function \
		-fdebug-compilation-dir=. "$@" -c "$source" -o "$object"
	# DWARF is the bulk of the file, and nothing reads it. One object keeps it, to see that it does no harm.
	[ "$object" = calls.bpf.o ] || "$strip" -g "$object"
	echo "$object"
}

for name in maps kinds types legacy data pointers calls externs core; do
	compile v3 "$name.bpf.c" "$name.bpf.o"
done
for cpu in v1 v2 v3 v4; do
	compile "$cpu" cpu.bpf.c "cpu_$cpu.bpf.o"
done
compile v3 cpu.bpf.c nodebug.bpf.o -g0
# Not for us: the other byte order.
"$clang" -target bpfeb -O2 -c cpu.bpf.c -o big.bpf.o && echo big.bpf.o
