#!/usr/bin/env bash
# Installs what a build needs and lacks, or says in one line what to install.
set -euo pipefail

apt_install() { # apt_install WHAT-IT-IS-FOR PACKAGE...
    local what=$1
    shift
    if command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
        echo "deps: installing $* ($what)" >&2
        apt-get update -qq >&2 || true
        local p
        for p in "$@"; do
            if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$p" >/dev/null 2>&1; then return 0; fi
        done
    fi
    echo "deps: $what is missing: install one of: $*" >&2
    exit 1
}

have_bpf_clang() {
    local c
    for c in ${CLANG:-} clang-22 clang-21 clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 clang; do
        command -v "$c" >/dev/null && "$c" --print-targets 2>/dev/null | grep -q bpfel && return 0
    done
    return 1
}

command -v cargo >/dev/null || { echo "deps: cargo is missing: install Rust 1.95 or newer with rustup" >&2; exit 1; }
have_bpf_clang || apt_install "clang with the BPF back end, for policies in C" clang-19 clang
command -v cc >/dev/null || apt_install "a C compiler, for the tests that drive the plugin from C" gcc
echo 'int i;' | cc -x c++ -fsyntax-only - 2>/dev/null || apt_install "a C++ compiler, for the test of the C API's header" g++
