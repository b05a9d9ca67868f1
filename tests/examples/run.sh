#!/usr/bin/env bash
# Runs the examples of the library as someone who learns from them does, but kills each in the
# middle first: the second run has to end well with the file that the first has left.
set -euo pipefail
cd "$(dirname "$0")/../.."

names=(queue sessions leaderboard web_cache typed)
# As the tests are built, so that nothing is compiled for this alone.
cargo build --quiet --profile test --workspace "${names[@]/#/--example=}"
programs=${CARGO_TARGET_DIR:-target}/debug/examples
directory=$(mktemp -d /dev/shm/evermap-examples.XXXXXX)
trap 'rm -rf "$directory"' EXIT

# Usage: run NAME LINE...; each line is a regular expression, and has to be in the output.
run() {
    local name=$1 output line
    shift
    (timeout --signal=KILL 0.4 "$programs/$name" "$directory/$name.map" || true) >/dev/null 2>&1
    output=$("$programs/$name" "$directory/$name.map")
    for line in "$@"; do
        grep -Eqx -e "$line" <<<"$output" || {
            printf '%s: no line "%s" in\n%s\n' "$name" "$line" "$output" >&2
            return 1
        }
    done
    ! grep -w false <<<"$output"
}

run queue '0 jobs are left, [1-9][0-9]* are done, in .*'
run sessions 'ann: 101 requests since' 'bob, who was idle, has been logged out' \
    'sessions that are left: 0'
run leaderboard '1\. .* points' 'the scores add up to the total: true'
run web_cache 'all pages were right, and [0-9]* had to be made'
run typed '[0-9]+ readings were there before' \
    'it has counted its readings: true'
echo "${#names[@]} examples ended well after a kill"
