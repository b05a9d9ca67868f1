#!/usr/bin/env bash
# Makes a Debian package of the command, its manual pages, its completions and the units of systemd:
# packaging/deb.sh. It prints where the package is: in target/debian. `packaging/try-deb.sh` tries it.
# Needs `cargo install cargo-deb`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
cargo build --release -p evermap-cli
evermap=$target/release/evermap
made=target/packaging
rm -rf "$made"
mkdir -p "$made/bash" "$made/zsh" "$made/fish"
"$evermap" man --all "$made/man1"
"$evermap" completions bash >"$made/bash/evermap"
"$evermap" completions zsh >"$made/zsh/_evermap"
"$evermap" completions fish >"$made/fish/evermap.fish"
cargo deb -p evermap-cli --no-build "$@"
