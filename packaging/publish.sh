#!/usr/bin/env bash
# Publishes nothing: checks that every crate that is not `publish = false` could be. Each is packed
# as it would be uploaded, and compiled from its package and those of the crates that it needs, in
# the order in which they have to be uploaded. Arguments are cargo's: `packaging/publish.sh
# --allow-dirty`, or `--no-verify` to compile nothing.
#
# The real thing is the same command without `--dry-run`.
set -euo pipefail
cd "$(dirname "$0")/.."

# Cargo takes a version for one that never changes, and would verify with packages of the run before:
# those that it has unpacked, in folders of registries without a host, and what it has compiled.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/{src,cache}/-*/evermap*-[0-9]*
target=${CARGO_TARGET_DIR:-target}/publish
rm -rf "$target"
CARGO_TARGET_DIR=$target cargo publish --workspace --dry-run "$@"
rm -rf "$target"

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
