#!/usr/bin/env bash
# Virtual machines with a disk, which lose their power while Evermap changes stores with a log on
# it: `tests/machines/disks.sh [KILLS [FS...]]`, KILLS in all (50 by default), divided among the
# file systems (ext4 and xfs by default).
#
# Each machine has three stores: one with its working copy in memory, one with all on the disk, and
# a server. Some machines end themselves: in a commit, in a checkpoint, in a rebuild or in closing
# of one of the first two. The host kills the others at any time. What the guest's kernel has not
# written is lost; what it has given to the disk is kept, also without a flush: for what a disk may
# lose there is `evermap-power record`.
#
# SEED repeats the choices, PROGRAMS is a folder with what else is built, machines/disks.log in the
# target folder has a line for each end. See guests.sh for what is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/machines/guests.sh
. tests/machines/guests.sh
kills=${1-50}
systems=("${@:2}")
[ ${#systems[@]} != 0 ] || systems=(ext4 xfs)
each=$(((kills + ${#systems[@]} - 1) / ${#systems[@]}))
seed=${SEED-$RANDOM}
RANDOM=$seed
subjects=(power.memory power.disk server.dash-eh)
ways=(time rebuild checkpoint commit close time first commit checkpoint rebuild)
declare -A most=([commit]=200 [checkpoint]=40 [rebuild]=3 [close]=60)
declare -A ended

# Chooses how a machine ends, and sets what its kernel is told of that.
choose() { # NUMBER
    way=${ways[$1 % ${#ways[@]}]} last="" die="" changes=""
    case $way in
    time | first) ;;
    *)
        last=${subjects[RANDOM % 2]}
        die=$way:$((RANDOM % most[$way] + 1))
        [ "$way" != close ] || changes=CHANGES=200
        ;;
    esac
    more_words="guest_subjects=$(IFS=,; echo "${subjects[*]}") guest_last=$last guest_die=$die"
    more_words+=" guest_changes=$changes"
}

# How many of the subjects have said something.
saying() { # WHAT
    grep -aE "^[a-z.-]+ $1 " "$said" | cut -d " " -f 1 | sort -u | wc -l || true
}

# Waits until a guest has ended itself, or is to be killed. Sets `moment` to how it ends, or leaves
# it empty if it should not have.
await() { # MACHINE
    local end=$((SECONDS + 580)) runs=1 late=""
    moment=""
    while [ -n "$runs" ] && [ $SECONDS -lt $end ]; do
        kill -0 "$1" 2>/dev/null || runs=""
        tr -d '\r' <"$log" >"$said"
        ! grep -aq 'WRONG\|^DONE\|panic' "$said" || return 0
        case $way in
        first) [ "$(saying FIRST)" -lt 2 ] || moment=first ;;
        time)
            # A server may take long to start beside the others.
            [ "$(saying ACK)" -lt 2 ] || late=${late:-$((SECONDS + 20))}
            [ "$(saying ACK)" -lt ${#subjects[@]} ] && [ $SECONDS -lt "${late:-$end}" ] ||
                moment=time
            ;;
        checked) [ "$(saying CHECKED)" -lt ${#subjects[@]} ] || moment=checked ;;
        *)
            [ -n "$runs" ] || { moment=$way && return 0; }
            # The step that was chosen did not come.
            [ "$(grep -ac "^$last ACK\|^$last CLOSED" "$said")" -lt 100 ] || moment=time
            ;;
        esac
        if [ -n "$moment" ]; then
            [ "$moment" != time ] || sleep "$((RANDOM % 3)).$((RANDOM % 10))"
            return 0
        fi
        sleep 0.1
    done
}

# Compares what was found with what was acknowledged before, and notes what is now. Of a line that
# was not sent completely, the number is lower at most.
judge() {
    touch "$work/acknowledged"
    awk -v notes="$work/acknowledged.new" '
        function note(name, count) { if (count > known[name]) known[name] = count }
        FILENAME == ARGV[1] { known[$1] = $2; next }
        !/^[a-z.-]+ (CHECKED|ACK)( [0-9])? [0-9]+$/ { next }
        { name = $1 (NF == 4 ? "/" $3 : "") }
        $2 == "CHECKED" && $NF < known[name] {
            print "FAILED: " name ": " known[name] " acknowledged, " $NF " found"
            failed = 1
        }
        { note(name, $NF) }
        END {
            for (name in known) print name, known[name] >notes
            exit failed
        }' "$work/acknowledged" "$said" && mv "$work/acknowledged.new" "$work/acknowledged"
}

# Runs one machine to its end.
machine() { # FS
    : >"$log"
    guest disk "$1" mem-ctrl logged >"$log" 2>&1 </dev/null &
    local machine=$!
    await "$machine"
    kill -9 "$machine" 2>/dev/null || true
    wait "$machine" 2>/dev/null || true
    tr -d '\r' <"$log" >"$said"
    if [ -z "$moment" ] || grep -aq WRONG "$said" || ! judge; then
        echo "FAILED: $1 ($way $last $die): $(grep -a WRONG "$said" || tail -c 2000 "$said")"
        cp "$said" "$work/failed.log"
        exit 1
    fi
    [ "$moment" = checked ] || ended[$moment]=$((${ended[$moment]:-0} + 1))
    echo "$1: $way $last $die, ended in $moment; $(tr '\n' ' ' <"$work/acknowledged")" |
        tee -a "$work/disks.log"
}

build
log=$work/disk-guest.log said=$work/disk-said
rm -f "$work/disks.log"
echo "seed $seed"
for fs in "${systems[@]}"; do
    format disk "$fs"
    rm -f "$work/acknowledged"
    for number in $(seq 0 $((each - 1))); do
        choose "$number"
        machine "$fs"
    done
    # The last one only checks.
    way=checked last="" die=""
    more_words="guest_subjects=$(IFS=,; echo "${subjects[*]}")"
    machine "$fs"
done
for moment in "${!ended[@]}"; do
    echo "machines that ended in $moment: ${ended[$moment]}"
done | sort
