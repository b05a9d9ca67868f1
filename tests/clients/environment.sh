# Functions for scripts that test with other projects' clients. Sourced at the root of the repository.

TARGET=${CARGO_TARGET_DIR:-target}
# Everything that is installed for the tests, except Debian's packages.
CLIENTS=$TARGET/clients

# Installs Debian's packages, as root on Debian. Elsewhere they are assumed to be there.
need_debian() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 0
    missing=
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    apt-get update -qq
    # A policy of 101 keeps the packages from starting servers of their own.
    policy=/usr/sbin/policy-rc.d
    ours=
    if [ ! -e $policy ]; then
        ours=$policy
        printf '#!/bin/sh\nexit 101\n' >$policy
        chmod +x $policy
    fi
    outcome=0
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null || outcome=$?
    [ -z "$ours" ] || rm -f "$ours"
    return $outcome
}

# Installs Debian's package for a program, unless it is there already, from wherever.
need_command() {
    command -v "$1" >/dev/null || need_debian "$2"
}

# Sets PYTHON to a Python with the clients of requirements.txt.
python_environment() {
    PYTHON=$CLIENTS/python/bin/python
    [ -x "$PYTHON" ] || python3 -m venv "$CLIENTS/python"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
}

# Sets EVERMAP to the program under test.
need_evermap() {
    if [ -z "${EVERMAP:-}" ]; then
        cargo build --quiet --release --bin evermap
        EVERMAP=$TARGET/release/evermap
    fi
}
