#!/bin/sh
# What `ringfence check` says of every wrong policy here. RINGFENCE names the binary.
cd "$(dirname "$0")"
for object in *.bpf.o; do
	sed -n '2s|^/\* \(.*\) \*/$|# \1|p' "${object%.o}.c"
	"${RINGFENCE:-../../../target/release/ringfence}" check "$@" "$object"
	echo
done
