#!/bin/sh
# Builds the laboratory's example of a plugin in C++ against Boost, whose headers a package for
# Python brings, and has every answer of it checked beside an index. The program under test is
# $EVERMAP, built from here unless that is set.
set -eu
cd "$(dirname "$0")/../.."
folder=${CARGO_TARGET_DIR:-target}/plugins
mkdir -p "$folder"
if [ ! -d "$folder/libboost_headers" ]; then
    pip download --quiet --no-deps --dest "$folder" 'libboost-headers>=1.83'
    python3 -m zipfile -e "$folder"/libboost_headers-*.whl "$folder"
fi
if [ -z "${EVERMAP-}" ]; then
    cargo build --release --quiet -p evermap-cli -p evermap-lab
    EVERMAP=${CARGO_TARGET_DIR:-target}/release/evermap
fi
c++ -std=c++17 -O3 -DNDEBUG -Wall -Wextra -Werror -shared -fPIC -I crates/evermap-lab/plugin \
    -isystem "$folder/libboost_headers/include" \
    -o "$folder/concurrent_flat_map.so" crates/evermap-lab/plugin/concurrent_flat_map.cpp
"$EVERMAP" lab run micro ycsb --plugin "$folder/concurrent_flat_map.so" \
    --index boost-flat-map,line-hash --keys 200000 --threads 2 --rounds 1 --patience 0 \
    --retries 0 "$@"
