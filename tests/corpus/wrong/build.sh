#!/bin/sh
# Rebuilds the objects beside this script, in place. Needs clang 19 and its llvm-strip (or CLANG=, STRIP=).
# They are committed, so that the tests need no compiler and instructions keep their numbers.
set -eu
cd "$(dirname "$0")"
clang=${CLANG:-clang-19}
strip=${STRIP:-llvm-strip-19}

for source in *.bpf.c; do
	object=${source%.c}.o
	"$clang" -target bpf -mcpu=v3 -O2 -g -Wall -Wextra -Werror -fdebug-compilation-dir=. \
		-I ../../../policies/include -c "$source" -o "$object"
	# DWARF is the bulk of the file, and nothing reads it.
	"$strip" -g "$object"
	echo "$object"
done
