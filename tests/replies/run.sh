#!/bin/sh
# Runs replies.py. Needs Debian's memcached; installs it if that is allowed here. The program under test is $EVERMAP,
# built from here unless that is set.
set -eu
cd "$(dirname "$0")/../.."
. tests/clients/environment.sh
need_debian memcached
need_evermap
exec python3 tests/replies/replies.py --binary "$EVERMAP" "$@"
