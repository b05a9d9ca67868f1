#!/usr/bin/env bash
# The checks that have to pass before a change lands: `./test.sh`. `./test.sh --full` also runs
# everything that takes longer. CONTRIBUTING.md says what runs where, and for how long.
set -euo pipefail
cd "$(dirname "$0")"

full=false
case "${1-}" in
'') ;;
--full) full=true ;;
*)
    echo "usage: ./test.sh [--full]" >&2
    exit 2
    ;;
esac

# Incremental compilation costs time where each crate is compiled once.
export CARGO_INCREMENTAL=0
# Some tests wait for time to pass, so there are more threads than processors.
export RUST_TEST_THREADS=$(($(nproc) * 2))
# Read by tests that have more cases than the default run has time for.
if $full; then export EVERMAP_TEST_TIER=full; else unset EVERMAP_TEST_TIER; fi
# Debug assertions, and the standard library's of unsafe code. The tests take so much longer than
# their compilation then that it is worth optimising.
if $full; then export CARGO_PROFILE_TEST_DEBUG_ASSERTIONS=true CARGO_PROFILE_TEST_OPT_LEVEL=2; fi

# The stores of other projects bring 56 more crates, and only the laboratory compares Evermap to
# them: the full run has them.
features=()
if $full; then features=(--all-features); fi

step() { printf '\n== %s (%d s)\n' "$*" "$SECONDS"; }

# Installs what the tests need from Debian, if that is allowed here. Otherwise they report what is
# missing.
install_packages() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    local missing=()
    command -v cc >/dev/null || missing+=(build-essential)
    python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
    if $full; then
        # The laboratory's page is rendered in a browser, and RocksDB is one of its stores.
        command -v chromium >/dev/null || missing+=(chromium)
        ls /usr/lib/*/librocksdb.so >/dev/null 2>&1 || missing+=(librocksdb-dev)
        # For machines with emulated persistent memory.
        command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
        command -v busybox >/dev/null || missing+=(busybox-static)
        command -v mkfs.xfs >/dev/null || missing+=(xfsprogs)
        command -v cpio >/dev/null || missing+=(cpio)
        command -v depmod >/dev/null || missing+=(kmod)
        command -v valgrind >/dev/null || missing+=(valgrind)
        # For tests as programs of another processor.
        command -v qemu-aarch64 >/dev/null || missing+=(qemu-user)
        command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu)
        ls /usr/aarch64-linux-gnu/lib/libc.so >/dev/null 2>&1 || missing+=(libc6-dev-arm64-cross)
    fi
    [ ${#missing[@]} -gt 0 ] || return 0
    step "installing ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}"
}

# Another processor, for the code that is left out on x86-64.
other=aarch64-unknown-linux-gnu

# Returns 0 if programs can be compiled for it. Rustup may fetch what is missing, where it can.
has_other() {
    command -v rustup >/dev/null || return
    rustup target list --installed | grep -qx "$other" \
        || timeout 60 rustup target add "$other" >/dev/null 2>&1
}

# All that a user of the libraries and of the command gets, but TLS, which has code in C.
other_processor() {
    step "compiled for $other"
    if ! has_other; then
        echo "NOT TRIED: rustup has no target $other here"
        return
    fi
    # Warnings are those of code that only other processors compile.
    local name=${other^^}
    local -x "CARGO_TARGET_${name//-/_}_RUSTFLAGS=-D warnings"
    cargo check --target "$other" --quiet -p evermap-pm -p evermap-index -p evermap-papers \
        -p evermap-volatile -p evermap -p evermap-raft --features evermap/more-indexes,evermap/serde
    cargo check --target "$other" --quiet -p evermap-server -p evermap-cli \
        --no-default-features --features evermap-cli/more-indexes,evermap-cli/top
}

# Tests as programs of that processor, which QEMU interprets: what is portable, and the order of
# memory only as strict as this machine's.
tests_of_other_processor() {
    step "tests for $other"
    if ! has_other || ! command -v qemu-aarch64 >/dev/null; then
        echo "NOT TRIED: needs rustup's target $other and qemu-aarch64"
        return
    fi
    local name=${other^^}
    export "CARGO_TARGET_${name//-/_}_LINKER=aarch64-linux-gnu-gcc"
    export "CARGO_TARGET_${name//-/_}_RUNNER=qemu-aarch64 -L /usr/aarch64-linux-gnu"
    env -u EVERMAP_TEST_TIER cargo test --target "$other" --quiet -p evermap-volatile --lib
}

# With exactly the version of Rust that the manifest declares.
declared_version() {
    local version toolchain
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    step "Rust $version"
    toolchain=$(rustup toolchain list 2>/dev/null | grep -m 1 -o "^$version[.-][^ ]*" || true)
    if [ -n "$toolchain" ]; then
        cargo "+$toolchain" check --workspace --all-targets --locked --quiet
    elif rustc --version | grep -q "^rustc $version\."; then
        cargo check --workspace --all-targets --locked --quiet
    else
        echo "NOT TRIED: rustup has no toolchain $version here"
    fi
}

lints() {
    step "format"
    cargo fmt --all --check
    step "lints"
    cargo clippy --workspace --all-targets "${features[@]}" -- -D warnings
    # In the workspace, the command turns on features of the library that are off by default.
    cargo clippy -p evermap -- -D warnings
    other_processor
    # They are a workspace of their own.
    if $full; then
        declared_version
        cargo check --manifest-path fuzz/Cargo.toml --quiet
        cargo clippy --manifest-path bindings/python/Cargo.toml --quiet -- -D warnings
        cargo fmt --manifest-path bindings/python/Cargo.toml --check
    fi
    step "documentation"
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
}

# Every test, except those whose programs have passed before and have not changed since.
tests_of_what_changed() {
    local runner="target.'cfg(unix)'.runner = ['$PWD/tests/unless-passed.sh']"
    # The examples have been compiled by the lints, and those that teach are run later.
    cargo test --workspace --tests --config "$runner"
    cargo test --workspace --doc
}

# The programs as the tests have built them: their figures mean nothing, but their answers are
# checked.
programs() {
    export EVERMAP="${CARGO_TARGET_DIR:-target}/debug/evermap"
    step "laboratory, in brief"
    "$EVERMAP" lab run micro \
        --index dash-eh,dash-lh,cceh,level,p-clht,line-hash,papaya,dashmap,scc-hashmap \
        --keys 30000 --threads 2 --rounds 1 --patience 0 --retries 0 --no-limits
    step "the library's examples, killed and run again"
    tests/examples/run.sh
    step "files, read by the offsets of docs/file-format.md"
    tests/file-format/run.sh
    step "libevermap: programs in C and C++, killed and run again, and under sanitizers"
    bindings/c/test.sh
    step "a killed server, a real client"
    tests/churn/run.sh --short
    step "a killed server, clients of all protocols, with and without eviction"
    tests/kills/run.sh --short
}

# Campaigns that take minutes each, optimised as for release.
long_campaigns() {
    step "the store, over each of its other indexes"
    for index in dash-lh cceh level line-hash p-clht tranche; do
        EVERMAP_TEST_INDEX=$index cargo test --release --quiet -p evermap --test store
    done
    step "kills under transfers"
    EVERMAP_CONSERVATION=50 cargo test --release --quiet -p evermap --test store conservation
    step "the store crashed everywhere"
    EVERMAP_CRASH_TIMES=2 cargo test --release --quiet -p evermap --test store crash::p
    step "requests of clients of all manners"
    EVERMAP_TORTURE=10000000 cargo test --release --quiet -p evermap-server --test server torture
    # These have a program that is optimised as for release.
    unset EVERMAP
    step "500 kills without and 500 with eviction"
    tests/kills/run.sh
    step "other projects' clients"
    tests/clients/run.sh
    step "a plugin of the laboratory in C++"
    tests/plugins/run.sh
    step "replies beside memcached"
    tests/replies/run.sh
    step "many connections, and slow ones"
    tests/connections/run.sh
    step "three servers behind other projects' clients and proxies"
    tests/fleet/run.sh
    step "killed machines with persistent memory"
    tests/machines/run.sh
    step "killed machines with a disk"
    tests/machines/disks.sh
    step "commands under valgrind"
    tests/valgrind/run.sh
    step "mistakes in the source"
    tests/source-edits/run.py --only-for 10
    tests/source-edits/run.py --table
    step "the package for Python"
    bindings/python/test.sh --full
    step "the crates as they would be published"
    packaging/publish.sh --allow-dirty --quiet
    tests_of_other_processor
    step "fuzzing"
    fuzz
}

# A minute of arbitrary input for each target.
fuzz() {
    if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
        cargo install --quiet --locked cargo-fuzz
    fi
    for target in protocol binary auth open; do
        (cd fuzz && cargo +nightly fuzz run "$target" -- -max_total_time=60)
    done
}

install_packages
lints
step "tests"
if $full; then cargo test --workspace --all-features; else tests_of_what_changed; fi
programs
if $full; then long_campaigns; fi
step "all checks passed"
