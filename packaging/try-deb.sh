#!/usr/bin/env bash
# Installs a Debian package of Evermap on this machine, runs what its unit runs, as its user, kills
# it, and purges the package: packaging/try-deb.sh FILE.deb, as root. Only where none is installed.
set -euo pipefail
package=$1
[ "$(id -u)" = 0 ] || { echo "needs root, to install the package" >&2; exit 2; }
if dpkg -s evermap >/dev/null 2>&1 || [ -e /usr/bin/evermap ] || [ -e /dev/shm/evermap ] \
    || getent passwd evermap >/dev/null; then
    echo "evermap, its user or its items are on this machine already" >&2
    exit 2
fi

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null || true
    dpkg -P evermap >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

expect() {
    [ "$2" = "$3" ] || { echo "$1: \"$2\" and not \"$3\"" >&2; exit 1; }
}

# Starts the command of the unit, and waits until it listens.
start() {
    : >"$work/log"
    local command
    command=$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/evermap.service)
    # shellcheck disable=SC2086
    setpriv --reuid evermap --regid evermap --init-groups --no-new-privs --inh-caps -all \
        ${command/\$OPTIONS/--memory 64M --listen 127.0.0.1:0} >"$work/log" 2>&1 &
    server=$!
    for _ in $(seq 600); do
        port=$(sed -n 's/^ready on 127\.0\.0\.1:\([0-9]*\).*/\1/p' "$work/log")
        [ -z "$port" ] || return 0
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    cat "$work/log" >&2
    exit 1
}

# Sends a request, and prints a line of the reply.
ask() {
    exec 3<>"/dev/tcp/127.0.0.1/$port"
    printf '%b' "$1" >&3
    for _ in $(seq "${2-1}"); do read -r -t 10 line <&3; done
    exec 3>&-
    printf '%s' "${line%$'\r'}"
}

dpkg -i "$package" >/dev/null
for file in usr/share/man/man1/evermap{,-serve}.1.gz usr/share/doc/evermap/LICENSE-APACHE \
    usr/share/bash-completion/completions/evermap usr/share/zsh/vendor-completions/_evermap \
    usr/share/fish/vendor_completions.d/evermap.fish usr/lib/systemd/system/evermap.socket; do
    [ -s "/$file" ] || { echo "no /$file" >&2; exit 1; }
done
grep -q 'Permission is hereby granted' /usr/share/doc/evermap/copyright
bash -c '. /usr/share/bash-completion/completions/evermap && complete -p evermap' >/dev/null

# The unit has this done by root.
eval "$(sed -n 's/^ExecStartPre=+//p' /usr/lib/systemd/system/evermap.service)"
start
expect set "$(ask 'set a 0 0 5\r\nhello\r\n')" STORED
kill -KILL "$server"
wait "$server" 2>/dev/null || true
start
expect "get after the kill" "$(ask 'get a\r\n' 2)" hello
kill -TERM "$server"
wait "$server"
server=
expect "get from the file" "$(evermap get /dev/shm/evermap/items.map a)" hello

dpkg -r evermap >/dev/null
[ -e /dev/shm/evermap/items.map ] || { echo "a removal has removed the items" >&2; exit 1; }
dpkg -P evermap >/dev/null
for left in /usr/bin/evermap /usr/share/doc/evermap /dev/shm/evermap; do
    [ ! -e "$left" ] || { echo "a purge has left $left" >&2; exit 1; }
done
! getent passwd evermap || { echo "a purge has left the user" >&2; exit 1; }
echo "installed, killed, served again, purged"
