#!/usr/bin/env bash
# Runs every check: formatting, lints, all tests with the crash campaigns among them, a look at the laboratory,
# and a server that is killed again and again under a real client. About ten minutes on two cores.
#
# Needs a Rust toolchain and a C linker, and python3 with venv for the last part. What is missing of the latter
# is installed where this runs as root on Debian. Uses the network for crates, Python packages and Debian
# packages only.
set -euo pipefail
cd "$(dirname "$0")"

step() {
    echo
    echo "== $* (after ${SECONDS} s)"
}

# Installs Debian packages that are missing; elsewhere, or without the right to, says what is missing.
need() {
    local command=$1 package=$2
    if eval "$command" >/dev/null 2>&1; then
        return
    fi
    if [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; then
        [ -n "${updated:-}" ] || apt-get -qq update
        updated=yes
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$package" >/dev/null
    else
        echo "test.sh: missing: $package (needed for: $command)" >&2
        exit 1
    fi
}

step tools
need 'cc --version' gcc
need 'python3 -m ensurepip --version' python3-venv
cargo --version
rustc --version

step formatting
cargo fmt --check

step lints
cargo clippy --quiet --workspace --all-targets -- -D warnings

step tests
cargo test --quiet --workspace

step laboratory
cargo build --quiet --release --bin evermap
evermap=${CARGO_TARGET_DIR:-target}/release/evermap
"$evermap" lab run micro --index dash-eh,papaya,dashmap,scc-hashmap --keys 100000 --threads 2 \
    --rounds 1 --patience 0 --retries 0 --no-limits

step kills
tests/churn/run.sh --short

echo
echo "all checks passed"
