#!/usr/bin/env bash
# libevermap as C and C++ programs use it: the examples are compiled, run, killed with kill -9 and
# run again, and a program that makes mistakes is run under sanitizers and valgrind. Where the
# library is, $LIBRARIES says; otherwise it is built.
set -euo pipefail
cd "$(dirname "$0")"
if [ -z "${LIBRARIES:-}" ]; then
    cargo build --quiet -p evermap-c
    LIBRARIES=$(cd ../.. && realpath "${CARGO_TARGET_DIR:-target}")/debug
fi
work=$(mktemp -d -p "${TMPDIR:-/dev/shm}")
process=
trap 'test -z "$process" || kill -9 "$process" 2>/dev/null || true; rm -rf "$work"' EXIT

make --silent install PREFIX="$work/usr" LIBRARIES="$LIBRARIES"
export PKG_CONFIG_PATH=$work/usr/lib/pkgconfig LD_LIBRARY_PATH=$work/usr/lib
if command -v pkg-config >/dev/null; then
    flags=$(pkg-config --cflags --libs evermap)
else
    flags="-I$work/usr/include -L$work/usr/lib -levermap"
fi
warnings="-Wall -Wextra -Wpedantic -Werror"

# shellcheck disable=SC2086 # they are several words
{
    cc -std=c11 $warnings -o "$work/visits" examples/visits.c $flags
    c++ -std=c++17 $warnings -o "$work/sessions" examples/sessions.cpp $flags
    # The other way to link: everything that the archive needs is named.
    private=$(sed -n 's/^Libs.private: //p' evermap.pc.in)
    cc -std=c11 $warnings -I"$work/usr/include" -o "$work/visits-static" examples/visits.c \
        "$work/usr/lib/libevermap.a" $private
    cc -std=c11 -g $warnings -o "$work/borders" tests/borders.c $flags -pthread
    cc -std=c11 -g $warnings -fsanitize=address,undefined -o "$work/borders-asan" tests/borders.c \
        $flags -pthread
}

# Fails unless the last output has these words.
expect() {
    grep -q "$1" "$work/out" || { echo "no '$1' in:" >&2; cat "$work/out" >&2; exit 1; }
}

# What docs/use/c.md shows: the first program counts on after a kill, and the one in C++ runs.
python3 - "$work" <<'PYTHON'
import re, sys
page = open("../../docs/use/c.md").read()
for language, name in ("c", "first.c"), ("cpp", "fruit.cpp"):
    program = re.search(rf"^```{language}\n(#include.*?)^```", page, re.M | re.S)[1]
    open(f"{sys.argv[1]}/{name}", "w").write(program)
PYTHON
# shellcheck disable=SC2086
(
    cd "$work"
    cc $warnings first.c -o first $flags
    c++ -std=c++17 $warnings fruit.cpp -o fruit $flags
)
for started in 1 2; do
    (cd "$work" && exec ./first) >"$work/out" & process=$!
    sleep 1.5
    kill -9 "$process"
    wait "$process" 2>/dev/null || true
    process=
    expect "visit $((started * 2))"
done
(cd "$work" && ./fruit) >"$work/out"
expect "banana=yellow"

file=$work/visits.map
"$work/visits" "$file" ann >"$work/out"
expect "ann: 1 of 1 visits"
for _ in 1 2 3; do
    "$work/visits" "$file" & process=$!
    sleep 0.3
    kill -9 "$process"
    wait "$process" 2>/dev/null || true
    process=
    "$work/visits-static" "$file" ann >"$work/out"
    # Each visit is counted for its visitor and for all, or not at all.
    expect "ann: [2-4] of"
done
"$work/visits" "$file" ann >"$work/out"
expect "ann: 5 of"
python3 - "$work/out" <<'PYTHON'
import re, sys
text = open(sys.argv[1]).read()
every = int(re.search(r"of (\d+) visits", text)[1])
last = [int(number) for number in re.findall(r"visit (\d+) by", text)]
assert every > 1000, text
assert last == [every, every - 1, every - 2], text
PYTHON

"$work/sessions" "$work/sessions.map" >"$work/out"
expect "session:1 is user 7"
expect "no note yet"
"$work/sessions" "$work/sessions.map" >"$work/out"
expect "session:2 is user 14"
expect "user 7 has time left"
expect "a note was there before"
expect "EVERMAP_ERR_READ_ONLY"

"$work/borders" "$work/plain.map" >/dev/null
"$work/borders-asan" "$work/asan.map" >/dev/null
if command -v valgrind >/dev/null; then
    valgrind --quiet --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite \
        "$work/borders" "$work/valgrind.map" 50 >/dev/null
fi
echo "libevermap: all checks passed"
