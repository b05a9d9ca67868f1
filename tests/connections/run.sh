#!/bin/sh
# Runs connections.py: ten thousand clients that stay connected, more clients than are allowed, and a thousand that do
# not read; against Evermap, and against memcached, for comparison. The program under test is $EVERMAP, built from here
# unless that is set. Needs memcached, which is installed if that is allowed here. Options are those of connections.py.
set -eu
cd "$(dirname "$0")/../.."
. tests/clients/environment.sh
case " $* " in
*" --only-evermap "*) ;;
*) need_command memcached memcached ;;
esac
need_evermap
exec python3 tests/connections/connections.py --binary "$EVERMAP" "$@"
