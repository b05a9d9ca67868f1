#!/bin/sh
# Runs hit_ratio.py, whose options it takes. Needs Debian's memcached; installs it if that is allowed here. The program
# under test is $EVERMAP, built from here unless that is set. All parts take about half an hour; choose some by --what.
set -eu
cd "$(dirname "$0")/../.."
. tests/clients/environment.sh
need_command memcached memcached
need_evermap
cargo build --quiet --release -p evermap --example eviction
exec python3 tests/hit-ratio/hit_ratio.py \
    --binary "$EVERMAP" --example "$TARGET/release/examples/eviction" "$@"
