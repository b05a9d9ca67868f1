#!/bin/sh
# Runs refusals.py, and fleet.py with its own Python environment. Needs Debian's nutcracker and memcached, and libmemcached's headers
# for pylibmc; installs them if that is allowed here. The program under test is $EVERMAP, built from here unless that
# is set.
set -eu
cd "$(dirname "$0")/../.."
. tests/clients/environment.sh
need_debian nutcracker memcached libmemcached-dev zlib1g-dev python3-dev gcc
python_environment
need_evermap
"$PYTHON" tests/fleet/refusals.py --binary "$EVERMAP"
exec "$PYTHON" tests/fleet/fleet.py --binary "$EVERMAP" "$@"
