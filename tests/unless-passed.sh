#!/usr/bin/env bash
# Runs a program of tests, unless the very same one has passed before: `test.sh` has cargo start each
# through this. Cargo does not build again what has not changed, so after a change only the tests of
# the crates that depend on it run.
set -euo pipefail
program=$1

# Not what documentation tests are compiled to, and not what reads files of the whole tree.
case "$program/$PWD" in
*/deps/*/crates/evermap*) ;;
*) exec "$@" ;;
esac

# What a result depends on: the program, the files of its crate, the programs that it may start, the
# options of the tests.
result_depends_on() {
    printf '%s\n' "$@" "${PWD##*/}"
    env | grep '^EVERMAP_' | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum
    sha256sum "$program"
    case "$PWD" in
    */evermap-cli | */evermap-lab) sha256sum "$(dirname "$program")"/../evermap{,-lab} ;;
    esac
}

passed=$(dirname "$program")/../passed
mark=$passed/$(result_depends_on "$@" | sha256sum | cut -d' ' -f1)
if [ -e "$mark" ]; then
    echo "passed before, and nothing that it depends on has changed"
    exit
fi
"$@"
mkdir -p "$passed"
touch "$mark"
