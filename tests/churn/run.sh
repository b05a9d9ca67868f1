#!/bin/sh
# Runs churn.py with its own Python environment. Options are those of churn.py.
set -eu
cd "$(dirname "$0")/../.."
target=${CARGO_TARGET_DIR:-target}
python=$target/python/churn
if [ ! -x "$python/bin/python" ]; then
    python3 -m venv "$python"
fi
"$python/bin/pip" install --quiet --disable-pip-version-check -r tests/churn/requirements.txt
cargo build --quiet --release --bin evermap
exec "$python/bin/python" tests/churn/churn.py --binary "$target/release/evermap" "$@"
