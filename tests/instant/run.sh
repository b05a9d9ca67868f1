#!/bin/sh
# Runs instant.py on a release build. Options are those of instant.py.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
cargo build --quiet --release --bin evermap
rustc --edition 2024 -O tests/instant/client.rs -o "$target/release/instant-client"
exec python3 tests/instant/instant.py \
    --binary "$target/release/evermap" --client "$target/release/instant-client" "$@"
