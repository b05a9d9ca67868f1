#!/usr/bin/env bash
# Builds the wheel for Python, installs it into an environment of its own, and runs its tests.
#
#     test.sh [INTERPRETER] [--full] [--benchmark]
#
# INTERPRETER is Python 3.11 or newer, with venv: `python3` unless it or $PYTHON says otherwise.
# `--full` tests the same wheel with the oldest and the newest one that the machine has. `--benchmark`
# runs the benchmark too.
set -euo pipefail
cd "$(dirname "$0")"
full=false benchmark=false interpreter=${PYTHON:-python3}
for argument; do
    case $argument in
    --full) full=true ;;
    --benchmark) benchmark=true ;;
    -*)
        echo "usage: test.sh [INTERPRETER] [--full] [--benchmark]" >&2
        exit 2
        ;;
    *) interpreter=$argument ;;
    esac
done
target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")
export CARGO_TARGET_DIR=$target/python

# Prints the version of an interpreter, if it is one, and new enough.
version_of() {
    "$1" -c 'import sys, venv, ensurepip
if sys.version_info >= (3, 11): print("%d.%02d" % sys.version_info[:2])' 2>/dev/null
}

# Prints an interpreter of each version that the machine has, the oldest first.
interpreters() {
    local python version
    for python in "$interpreter" /usr/bin/python3.?? /usr/local/bin/python3.?? \
        "${PYENV_ROOT:-$HOME/.pyenv}"/versions/*/bin/python3; do
        version=$(version_of "$python" || true)
        [ -z "$version" ] || echo "$version $python"
    done | sort -s -u -k 1,1 | cut -d ' ' -f 2-
}

# Builds the wheel with an interpreter, and prints where it is.
build() {
    local wheels=$target/python-wheels
    rm -rf "$wheels"
    "$1" -m pip wheel --quiet --no-deps --wheel-dir "$wheels" .
    echo "$wheels"/*.whl
}

# Installs a wheel for an interpreter, and runs the tests.
test_with() {
    local version environment
    version=$(version_of "$1")
    environment=$target/python-venv-$version
    [ -x "$environment/bin/python" ] || "$1" -m venv "$environment"
    "$environment/bin/pip" install --quiet --force-reinstall --no-deps "$2"
    "$environment/bin/pip" install --quiet "$2[test,frameworks,benchmark]"
    echo "Python $("$environment/bin/python" -c 'import platform; print(platform.python_version())')"
    "$environment/bin/python" -m pytest -q
    if $benchmark; then "$environment/bin/python" benchmark.py; fi
}

[ -n "$(version_of "$interpreter" || true)" ] || {
    echo "$interpreter is not Python 3.11 or newer with venv; name another one" >&2
    exit 1
}
if $full; then
    mapfile -t found < <(interpreters)
    tested=("${found[0]}")
    [ ${#found[@]} = 1 ] || tested+=("${found[-1]}")
else
    tested=("$interpreter")
fi
# The wheel is for the oldest version and all later ones, so it is built once, with the oldest.
wheel=$(build "${tested[0]}")
for python in "${tested[@]}"; do test_with "$python" "$wheel"; done
