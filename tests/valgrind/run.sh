#!/bin/sh
# Runs commands under valgrind, which asks more of how a program starts and maps memory than the
# kernel does. Without valgrind's memory checker: it takes minutes to note a large address space.
# The program under test is $EVERMAP, built from here unless that is set.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${EVERMAP:-}" ]; then
    cargo build --quiet --release --bin evermap
    EVERMAP=${CARGO_TARGET_DIR:-target}/release/evermap
fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
under_valgrind() { timeout 60 valgrind -q --tool=none "$EVERMAP" "$@"; }

printf 'apple\tred\nplum\tblue\n' | under_valgrind load "$directory/store"
[ "$(under_valgrind get "$directory/store" plum)" = blue ]
under_valgrind check --deep "$directory/store"
echo "passed"
