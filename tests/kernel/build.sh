#!/usr/bin/env bash
# build.sh LINUX OUT: compiles the verifier selftests of an unpacked Linux source tree into a corpus for
# tests/tests/kernel_selftests.rs (RINGFENCE_KERNEL_SELFTESTS=OUT). Nothing of the kernel's is part of this repository.
#
#   OUT/progs/*.o       tools/testing/selftests/bpf/progs/verifier_*.c, with their annotations as BTF declaration tags
#   OUT/verifier.jsonl  the tests of verifier/*.c, one a line, with maps in place of file descriptors
#   OUT/failed.txt      files that this compiler could not build
#
# Needs clang 18 or later (CLANG=...), gcc, python3, bpftool, and /sys/kernel/btf/vmlinux of some recent kernel.
# Of the tree: tools/testing/selftests/bpf, tools/lib/bpf, tools/include, tools/arch/x86/include, scripts/bpf_doc.py.
set -euo pipefail
linux=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
clang=${CLANG:-clang-19}
tests=$linux/tools/testing/selftests/bpf

headers() {
    mkdir -p "$out/include/bpf" "$out/progs"
    cp "$linux"/tools/lib/bpf/*.h "$out/include/bpf/"
    python3 "$linux/scripts/bpf_doc.py" --header --file "$linux/tools/include/uapi/linux/bpf.h" \
        >"$out/include/bpf/bpf_helper_defs.h"
    [ -s "$out/include/vmlinux.h" ] ||
        bpftool btf dump file "${VMLINUX_BTF:-/sys/kernel/btf/vmlinux}" format c >"$out/include/vmlinux.h"
}

# The selftests include headers of the machine after all others, as their own build does.
system_includes() {
    "$clang" -v -E - </dev/null 2>&1 |
        sed -n '/<...> search starts here:/,/End of search list./{ s| \(/.*\)|-idirafter \1|p }'
}

objects() {
    local source name
    : >"$out/failed.txt"
    # shellcheck disable=SC2046 # words are meant to be split
    for source in "$tests"/progs/verifier_*.c; do
        name=$(basename "$source" .c)
        if ! "$clang" -g -O2 -mcpu=v3 --target=bpf -D__TARGET_ARCH_x86 -mlittle-endian -w \
            -I"$out/include" -I"$tests" -I"$linux/tools/include/uapi" -I"$linux/tools/include" \
            $(system_includes) -c "$source" -o "$out/progs/$name.o" 2>"$out/progs/$name.err"; then
            rm -f "$out/progs/$name.o"
            echo "$name: $(grep -m 1 error "$out/progs/$name.err")" >>"$out/failed.txt"
        fi
        [ -s "$out/progs/$name.err" ] || rm -f "$out/progs/$name.err"
    done
}

# verifier/tests.h as the kernel's build makes it, with a mark before each file.
arrays() {
    mkdir -p "$out/include/verifier"
    (cd "$tests" && for f in verifier/*.c; do
        printf '{ .descr = "@%s" },\n#include "%s"\n' "$(basename "$f" .c)" "$tests/$f"
    done) >"$out/include/verifier/tests.h"
    gcc -w -O1 -I"$out/include" -I"$tests" -I"$linux/tools/include" -I"$linux/tools/include/uapi" \
        -DKERNEL_TESTS="\"$tests/test_verifier.c\"" -o "$out/dump" "$here/dump.c" \
        -static -ffunction-sections -Wl,--gc-sections,--unresolved-symbols=ignore-all
    "$out/dump" >"$out/verifier.jsonl"
}

headers
objects
arrays
echo "$(find "$out/progs" -name '*.o' | wc -l) objects, $(wc -l <"$out/failed.txt") not compiled," \
    "$(wc -l <"$out/verifier.jsonl") tests in arrays"
cat "$out/failed.txt"
