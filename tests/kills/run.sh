#!/bin/sh
# Runs kills.py: 500 kills without a limit of memory, and 500 with eviction; with --short, five of each. The program
# under test is $EVERMAP, built from here unless that is set. Other options are those of kills.py.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${EVERMAP:-}" ]; then
    cargo build --quiet --release --bin evermap
    EVERMAP=${CARGO_TARGET_DIR:-target}/release/evermap
fi
# About half of what the keys would take.
case " $* " in
*" --short "*) memory=2M ;;
*) memory=8M ;;
esac
python3 tests/kills/kills.py --binary "$EVERMAP" "$@"
exec python3 tests/kills/kills.py --binary "$EVERMAP" --memory "$memory" "$@"
