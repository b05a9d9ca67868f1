#!/usr/bin/env bash
# Checks what is in this folder, as far as the machine can: packaging/check.sh [EVERMAP]
#
# EVERMAP is the program to try, target/release/evermap by default.
set -euo pipefail
evermap=$(realpath "${1:-$(dirname "$0")/../target/release/evermap}")
cd "$(dirname "$0")"

step() { printf '== %s\n' "$*"; }
skip() { printf '   not tried: %s\n' "$*"; }

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT

step "unit files"
if command -v systemd-analyze >/dev/null; then
    # The program and the user may not be there, which does not matter for the syntax.
    mkdir "$work/units"
    sed -e "s|/usr/bin/evermap|$evermap|" -e 's/^User=.*/User=root/' -e 's/^Group=.*/Group=root/' \
        evermap.service >"$work/units/evermap.service"
    cp evermap.socket "$work/units/"
    # An old systemd does not know every setting, and says so. Anything else is an error.
    unknown="Unknown key name"
    systemd-analyze verify "$work/units/evermap.service" "$work/units/evermap.socket" \
        >"$work/verify" 2>&1 || true
    if grep -F "$work/units" "$work/verify" | grep -vE "$unknown"; then
        echo "the unit files have errors" >&2
        exit 1
    fi
    grep -E "$unknown" "$work/verify" | sed 's/^/   /' || true
    # Without a running systemd there may be no rating.
    systemd-analyze security --offline=true "$work/units/evermap.service" 2>/dev/null \
        | tail -1 | sed 's/^/   /' || true
else
    skip "there is no systemd-analyze"
fi

step "Kubernetes example"
if python3 -c 'import yaml' 2>/dev/null; then
    python3 - <<'PYTHON'
import yaml

documents = list(yaml.safe_load_all(open("kubernetes/evermap.yaml")))
assert [document["kind"] for document in documents] == ["Service", "StatefulSet"]
pod = documents[1]["spec"]["template"]["spec"]
mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
assert mounts == {volume["name"] for volume in pod["volumes"]}, mounts
labels = documents[1]["spec"]["template"]["metadata"]["labels"]
assert documents[0]["spec"]["selector"] == labels
print("   parsed")
PYTHON
else
    skip "Python has no yaml"
fi

step "Dockerfile"
if docker version >/dev/null 2>&1 && docker info 2>/dev/null | grep -q 'Server Version'; then
    docker build -q -f Dockerfile -t evermap-check .. >/dev/null && echo "   built"
else
    skip "there is no Docker here; the entry point is tried without it"
fi
# Every file that it copies is there.
sed -n 's/^COPY \(packaging[^ ]*\) .*/\1/p' Dockerfile | while read -r file; do
    [ -e "../$file" ] || { echo "Dockerfile: $file is missing" >&2; exit 1; }
done

step "entry point"
mkdir "$work/bin" "$work/data"
ln -s "$evermap" "$work/bin/evermap"
ln -s evermap "$work/bin/memcached"
user=()
[ "$(id -u)" != 0 ] || user=(-u root)

# Starts the server through the entry point, waits until it answers, and sets `port`.
start() {
    rm -f "$work/port"
    PATH="$work/bin:$PATH" EVERMAP_FILE="$work/data/items.map" \
        MEMCACHED_PORT_FILENAME="$work/port" ./entrypoint.sh "$@" >"$work/log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        [ -s "$work/port" ] && break
        kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
        sleep 0.05
    done
    port=$(sed -n 's/^TCP INET: //p' "$work/port")
    [ -n "$port" ] || { cat "$work/log" >&2; exit 1; }
}

# Sends one request, and prints the first line of the reply.
ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$1" >&3
    read -r -t 10 line <&3
    exec 3>&-
    printf '%s' "${line%$'\r'}"
}

expect() {
    local reply
    reply=$(ask "$1")
    [ "$reply" = "$2" ] || { echo "$1: \"$reply\" and not \"$2\"" >&2; exit 1; }
}

stop() {
    kill -"$1" "$server"
    wait "$server" 2>/dev/null || true
    server=
}

start -p -1 -l 127.0.0.1 -m 64 "${user[@]}"
expect 'set a 0 0 1\r\nx\r\n' STORED
stop KILL
start memcached -p -1 -l 127.0.0.1 -m 64 "${user[@]}"
expect 'get a\r\n' 'VALUE a 0 1'
stop TERM
start serve --listen 127.0.0.1:0
expect 'get a\r\n' 'VALUE a 0 1'
stop TERM
echo "   the items survive a kill, under both names"
