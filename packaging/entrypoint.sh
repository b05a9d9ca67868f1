#!/bin/sh
# Starts the server as the official image of memcached does: `-m 1024` alone are options of
# memcached. The file of the items is $EVERMAP_FILE, unless the options say otherwise.
set -eu

case "${1-}" in
'' | -*) set -- memcached "$@" ;;
serve) set -- evermap "$@" ;;
esac

# Returns 0 if one of the arguments is one of the options that name the file.
has_file() {
    for argument; do
        case "$argument" in
        -e | -e?* | --memory-file | --memory-file=* | --path | --path=* | --durability*) return 0 ;;
        esac
    done
    return 1
}

if [ -n "${EVERMAP_FILE-}" ] && ! has_file "$@"; then
    case "$1" in
    memcached | */memcached) set -- "$@" -e "$EVERMAP_FILE" ;;
    evermap | */evermap)
        if [ "${2-}" = serve ]; then
            # In a container the loopback interface would be of no use.
            listens=false
            for argument; do
                case "$argument" in --listen | --listen=* | --socket | --socket=*) listens=true ;; esac
            done
            $listens || set -- "$@" --listen 0.0.0.0:11211
            set -- "$@" --path "$EVERMAP_FILE"
        fi
        ;;
    esac
fi

exec "$@"
