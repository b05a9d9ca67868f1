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
    version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    package=${CARGO_TARGET_DIR:-target}/package/$crate-$version.crate
    for file in README.md LICENSE-MIT LICENSE-APACHE Cargo.lock; do
        # Extracted, because a link whose target is not packed would be listed too.
        if ! tar -xOzf "$package" "$crate-$version/$file" 2>/dev/null | grep -q .; then
            echo "$package has no $file" >&2
            exit 1
        fi
    done
done
