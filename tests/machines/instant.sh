#!/usr/bin/env bash
# How soon files on emulated persistent memory answer after a loss of power, by their size:
# `tests/machines/instant.sh [STEPS...]` (2000, 60000, 600000 and 1400000 by
# default; a step stores a record).
#
# Times are of a virtual clock, which an instruction moves by a nanosecond: what a busy machine, or
# the emulation, adds is not in them, and neither are cache misses. See guests.sh for what is
# needed; FILES is a folder with files that an earlier run has made.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/machines/guests.sh
. tests/machines/guests.sh
names=(index.{dash-eh,level,p-art,p-hot} {store,server}.dash-eh)
sizes=("$@")
[ $# != 0 ] || sizes=(2000 60000 600000 1400000)
megabytes=([ext4]=3400)
log=$work/instant.log

# Fills a file on this machine, which is faster than in a guest, and closes it.
fill() { # NAME STEPS
    local kind=${1%%.*} index=${1#*.} file=$1.$2 servers=""
    [ ! -e "$file.filled" ] || return 0
    rm -f "$file"
    : >"$file.log"
    FILL=$2 evermap-machines "$kind" "$index" process "$file" >"$file.log" &
    local process=$!
    until grep -q '^FILLED' "$file.log"; do
        kill -0 "$process" || return 1
        sleep 0.2
    done
    [ "$kind" != server ] || servers=$(pgrep -P "$process")
    kill -9 "$process"
    wait "$process" 2>/dev/null || true
    if [ "$kind" = server ]; then
        kill "$servers"
        while kill -0 "$servers" 2>/dev/null; do sleep 0.1; done
        rm -f socket
    else
        evermap-machines grant process "$file" >/dev/null
    fi
    mv "$file.log" "$file.filled"
}

# Runs a guest that opens all files, until it has opened the last one, and takes its power away.
boot() {
    local end=$((SECONDS + 590)) machine
    guest nvdimm ext4 mem-ctrl firsts adr >"$log" 2>&1 </dev/null &
    machine=$!
    until grep -aq "^${subjects[-1]} FILLED\|WRONG\|DONE" "$log" || [ $SECONDS -ge $end ]; do
        sleep 0.2
    done
    kill -9 "$machine" 2>/dev/null || true
    wait "$machine" 2>/dev/null || true
    [ "$(grep -ac FIRST "$log")" = ${#subjects[@]} ] || { cat "$log" && return 1; }
}

build
programs=$(realpath "${PROGRAMS:-$target/release}")
folder=${FILES:-$work/files}
mkdir -p "$folder"
subjects=()
for name in "${names[@]}"; do
    for steps in "${sizes[@]}"; do
        (cd "$folder" && PATH=$programs:$PATH fill "$name" "$steps")
        subjects+=("$name.$steps")
    done
done
format nvdimm ext4 "$folder"
more_words="guest_subjects=$(IFS=,; echo "${subjects[*]}")"
boot
clock=(-icount "shift=0,sleep=off")
boot
tr -d '\r' <"$log" | grep -a FIRST
