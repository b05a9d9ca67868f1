#!/bin/sh
# Tries the server with other projects' clients, and prints a table of what each found; see run.py for options. What
# they need is installed: from Debian, if that is allowed here, and below target/clients. The program under test is
# $EVERMAP, built from here unless that is set.
set -eu
cd "$(dirname "$0")/../.."
. tests/clients/environment.sh
need_debian libmemcached-tools libmemcached-dev zlib1g-dev python3-dev gcc ruby ruby-dalli
need_command go golang-go
need_command mvn maven
need_command npm npm
python_environment
need_evermap
mkdir -p "$CLIENTS"
CLIENTS=$(realpath "$CLIENTS")
if command -v go >/dev/null; then
    (cd tests/clients/go && go build -o "$CLIENTS/gomemcache" .)
fi
if command -v mvn >/dev/null; then
    mvn --quiet --batch-mode --file tests/clients/java/pom.xml -Doutput="$CLIENTS/java" \
        compile dependency:copy-dependencies -DoutputDirectory="$CLIENTS/java/lib"
fi
if command -v npm >/dev/null; then
    mkdir -p "$CLIENTS/node"
    cp tests/clients/node/package.json "$CLIENTS/node"
    npm install --silent --no-audit --no-fund --prefix "$CLIENTS/node"
fi
exec "$PYTHON" tests/clients/run.py --binary "$EVERMAP" --clients "$CLIENTS" "$@"
