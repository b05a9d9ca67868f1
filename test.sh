#!/usr/bin/env bash
# Everything that has to hold before a change lands. About twenty minutes on two cores, half of it compiling.
set -euo pipefail
cd "$(dirname "$0")"
# Nothing is compiled twice here, so there is nothing to prepare for.
export CARGO_INCREMENTAL=0

step() { printf '\n== %s\n' "$*"; }

# What the tests need from Debian, where we may install it. Elsewhere they say what is missing.
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    # The laboratory's page is looked at in a browser, and RocksDB measured.
    command -v chromium >/dev/null || missing+=(chromium)
    ls /usr/lib/*/librocksdb.so >/dev/null 2>&1 || missing+=(librocksdb-dev)
    if [ ${#missing[@]} -gt 0 ]; then
        step "installing ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
    fi
fi

step "format"
cargo fmt --all --check

step "lints"
cargo clippy --workspace --all-targets --all-features -- -D warnings

step "tests, with short crash campaigns"
cargo test --workspace --all-features

step "the store, over each of its other indexes"
for index in dash-lh cceh level p-clht; do
    EVERMAP_TEST_INDEX=$index cargo test --workspace --all-features --quiet --test store
done

step "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

# The program as the tests have built it: its figures mean nothing, but every table answers, and is checked.
export EVERMAP="${CARGO_TARGET_DIR:-target}/debug/evermap"

step "laboratory, in brief"
"$EVERMAP" lab run micro \
    --index dash-eh,dash-lh,cceh,level,p-clht,line-hash,papaya,dashmap,scc-hashmap --keys 100000 --threads 2 \
    --rounds 1 --patience 0 --retries 0 --no-limits

step "a killed server, a real client"
tests/churn/run.sh --short

printf '\nall checks passed\n'
