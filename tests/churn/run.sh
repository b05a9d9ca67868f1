#!/bin/sh
# Runs churn.py with its own Python environment. Options are those of churn.py. The program under test is
# $EVERMAP, built from here unless that is set.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
python=$target/python/churn
if [ ! -x "$python/bin/python" ]; then
    python3 -m venv "$python"
fi
"$python/bin/pip" install --quiet --disable-pip-version-check -r tests/churn/requirements.txt
if [ -z "${EVERMAP:-}" ]; then
    cargo build --quiet --release --bin evermap
    EVERMAP=$target/release/evermap
fi
exec "$python/bin/python" tests/churn/churn.py --binary "$EVERMAP" "$@"
