#!/usr/bin/env bash
# Builds the wheel for Python, installs it into an environment of its own, and runs its tests. Needs
# Python 3.11 or newer, with venv; $PYTHON says which. `--benchmark` runs the benchmark too.
set -euo pipefail
cd "$(dirname "$0")"
target=$(realpath -m "${CARGO_TARGET_DIR:-../../target}")
export CARGO_TARGET_DIR=$target/python
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is older than 3.11; PYTHON can name another one" >&2
    exit 1
}
[ -d "$target/python-venv" ] || "$python" -m venv "$target/python-venv"
environment=$target/python-venv/bin
"$environment/pip" install --quiet ".[test,frameworks,benchmark]"
"$environment/python" -m pytest -q
if [ "${1-}" = --benchmark ]; then "$environment/python" benchmark.py; fi
