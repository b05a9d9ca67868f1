#!/usr/bin/env bash
# Publishes nothing: checks that every crate that is not `publish = false` could be. Each is packed
# as it would be uploaded, and compiled from its package and those of the crates that it needs, in
# the order in which they have to be uploaded. Arguments are cargo's: `packaging/publish.sh
# --allow-dirty`, or `--no-verify` to compile nothing.
#
# The real thing is the same command without `--dry-run`.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo publish --workspace --dry-run "$@"

# Cargo packs a crate without its licence as well.
for manifest in crates/*/Cargo.toml; do
    ! grep -q '^publish = false' "$manifest" || continue
    crate=$(basename "$(dirname "$manifest")")
    packed=$(cargo package --list --allow-dirty --quiet -p "$crate")
    for file in README.md LICENSE-MIT LICENSE-APACHE Cargo.lock; do
        if ! grep -qx "$file" <<<"$packed"; then
            echo "the package of $crate has no $file" >&2
            exit 1
        fi
    done
done
