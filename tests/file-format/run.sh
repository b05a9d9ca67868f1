#!/bin/sh
# Makes files of several kinds, and reads them by the offsets of docs/file-format.md: what read.py finds has to be
# what the program has stored. The program under test is $EVERMAP, built from here unless that is set.
set -eu
cd "$(dirname "$0")/../.."
if [ -z "${EVERMAP:-}" ]; then
    cargo build --quiet --release --bin evermap
    EVERMAP=${CARGO_TARGET_DIR:-target}/release/evermap
fi
work=$(mktemp -d)
server=
trap 'test -z "$server" || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

# Prints `map TAB key TAB value` in hex for every record that the program finds in $file, sorted.
found_by_program() {
    python3 - "$EVERMAP" "$file" <<'PYTHON'
import json, subprocess, sys
program, file = sys.argv[1:]
run = lambda *arguments: subprocess.run([program, *arguments], check=True, capture_output=True).stdout
bytes_of = lambda text: text.encode() if isinstance(text, str) else __import__("base64").b64decode(text["base64"])
for name in ["", *run("maps", file).decode().splitlines()]:
    for line in run("dump", "--format", "jsonl", *(["--map", name] if name else []), file).splitlines():
        record = json.loads(line)
        print(name.encode().hex(), *(bytes_of(record[part]).hex() for part in ("key", "value")), sep="\t")
PYTHON
}

# Compares what is found in $file by the program and by the page, and requires these words of the description.
compare() {
    python3 tests/file-format/read.py "$file" >"$work/description"
    for words in "$@"; do
        grep -q "$words" "$work/description" || {
            echo "expected '$words' in:" >&2
            cat "$work/description" >&2
            exit 1
        }
    done
    # First, because the program changes the file when it opens it after a kill.
    python3 tests/file-format/read.py --dump "$file" | sort >"$work/by-page"
    found_by_program | sort >"$work/by-program"
    cmp "$work/by-page" "$work/by-program"
}

records() { seq "$1" | awk '{ print "key-" $1 "\tvalue " $1 " " $1 * $1 }'; }

file=$work/plain.map
records 3000 | "$EVERMAP" load "$file" >/dev/null
head -c 6500000 /dev/urandom | base64 -w0 | "$EVERMAP" put "$file" large >/dev/null
compare 'format 5,' 'state CLEAN' 'the default map: 3001 records' '2 extents of large objects' '1 later parts'

"$EVERMAP" load --map users "$file" >/dev/null <<END
ann	1
ben	2
END
"$EVERMAP" del "$file" key-7 >/dev/null
compare 'format 11,' 'the default map: 3000 records' "the map b'users': 2 records"

# A server keeps the order, and is killed; then it is started again, and stopped.
for order in volatile persistent; do
    file=$work/$order.map
    records 2000 | "$EVERMAP" load "$file" >/dev/null
    for signal in KILL TERM; do
        : >"$work/log"
        "$EVERMAP" serve --path "$file" --ordered $order --socket "$work/socket" >"$work/log" 2>&1 &
        server=$!
        until grep -q '^ready' "$work/log"; do sleep 0.1; done
        kill -s $signal "$server"
        wait "$server" 2>/dev/null || true
        server=
        cp "$file" "$work/copy.map"
        case $order-$signal in
        volatile-TERM) wanted='2000 keys saved in order' ;;
        persistent-*) wanted='its order in the file' ;;
        *) wanted='the default map: 2000 records' ;;
        esac
        case $signal in
        KILL) compare 'state open' "$wanted" ;;
        TERM) compare 'state CLEAN' "$wanted" ;;
        esac
    done
done
echo "every file is as docs/file-format.md says"
