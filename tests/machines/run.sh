#!/usr/bin/env bash
# Virtual machines with emulated persistent memory, which lose their power while Evermap changes a
# file in it: `tests/machines/run.sh [KILLS [PATTERN]]`, so many (44 by default), divided among all
# subjects, or those that match the pattern.
#
# Some are killed by the host, at any time. The others end themselves, at a step of a moment: the
# creation of a file, its growth, a compaction, an opening, the recovery after it, a sweep.
#
# The emulated memory keeps every store of a guest, so nothing is said about what a cache can lose;
# the crash simulator is there for that. SEED repeats the choices, PROGRAMS is a folder with what
# else is built. See guests.sh for what is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/machines/guests.sh
. tests/machines/guests.sh
kills=${1-44}
pattern=${2-.}
seed=${SEED-$RANDOM}
failed=0
RANDOM=$seed

# File system, level, domain, and what is changed.
subjects=(
    "ext4 adr mem-ctrl index "{dash-eh,dash-lh,cceh,level,p-clht,line-hash,tranche}
    "ext4 adr mem-ctrl index "{p-art,fast-fair,p-bwtree,p-masstree,p-hot}
    "ext4 adr mem-ctrl store "{dash-eh,level,tranche}
    "ext4 adr mem-ctrl server "{dash-eh,level}
    "xfs adr mem-ctrl index p-art"
    "xfs adr mem-ctrl store dash-eh"
    "xfs adr mem-ctrl server dash-eh"
    "ext4 eadr cpu store dash-lh"
    "ext4 eadr cpu server cceh"
)
# How machines end one after another: at a moment, when the first answer is given, or at any time.
ways=(growth recovery time compaction opening sweep first growth compaction recovery time sweep)
way=0
# How many machines have ended at each moment, and the last step of each that was seen.
declare -A ended steps

# Runs a guest to its end, and compares what it says with what is wanted.
expect() { # WANTED DEVICE FS DOMAIN COMMAND...
    local wanted=$1 said
    shift
    said=$(guest "$@" </dev/null 2>&1 | tr -d '\r')
    if grep -q "$wanted" <<<"$said"; then
        echo "ok: $*: $(grep "$wanted" <<<"$said" | head -1)"
    else
        echo "FAILED: ${*}: no \"$wanted\" in: $said"
        failed=1
    fi
}

# What the level needs is there, or it is refused with the reason.
grants() {
    local grant=(evermap-machines grant)
    local fs
    for fs in ext4 xfs; do
        format nvdimm $fs
        expect "GRANTED adr on $fs" nvdimm $fs mem-ctrl "${grant[@]}" adr /mnt/file
        expect "GRANTED process on $fs" nvdimm $fs mem-ctrl "${grant[@]}" process /mnt/file
        expect "GRANTED adr on $fs" nvdimm $fs mem-ctrl "${grant[@]}" adr /mnt/file
        expect "is .memory_controller.: .cpu_cache. is needed" nvdimm $fs mem-ctrl "${grant[@]}" eadr /mnt/file
        expect "GRANTED eadr on $fs" nvdimm $fs cpu "${grant[@]}" eadr /mnt/file
    done
    format virtio ext4
    expect "flush kind .adr.: " virtio ext4 mem-ctrl "${grant[@]}" adr /mnt/file
    format disk ext4
    expect "no persistent memory" disk ext4 mem-ctrl "${grant[@]}" adr /mnt/file
    expect "GRANTED process" disk ext4 mem-ctrl "${grant[@]}" process /mnt/file
}

# The last word of the last line that begins so, of what a guest has said.
last() { # BEGINNING FILE
    tr -d '\r' <"$2" | grep -a "^$1 " | tail -1 | awk '{print $NF}'
}

# Chooses a step of a moment of a subject, up to the last one that was seen of it.
step_of() { # MOMENT
    local most=${steps[$1]:-40}
    # Of the other moments there will be more.
    [ "$1" != growth ] || most=96
    echo $((RANDOM % most + 1))
}

# Chooses the next way to end a machine of the current subject.
choose() { # KIND
    chosen=${ways[way++ % ${#ways[@]}]}
    case $1:$chosen in
    # Where and when a server is, is not known from outside of it.
    server:growth | server:compaction | server:sweep) chosen=time ;;
    server:recovery | server:opening) chosen=first ;;
    index:compaction) chosen=growth ;;
    esac
}

# Waits until a guest has ended itself, or until it is to be killed. Sets `moment` to what it did
# then, or leaves it empty.
await() { # MACHINE LOG WAY
    local machine=$1 log=$2 way=$3 wanted=$((RANDOM % 30)) end=$((SECONDS + 300))
    moment=""
    while [ $SECONDS -lt $end ]; do
        local runs=1
        kill -0 "$machine" 2>/dev/null || runs=""
        grep -aq '^WRONG\|^DONE' "$log" && return
        if [ -z "$runs" ]; then
            ! grep -aq '^DIED' "$log" || moment=$way
            return
        fi
        local acknowledged
        acknowledged=$(grep -ac '^ACK' "$log") || true
        case $way in
        first) grep -aq '^FIRST' "$log" && moment=first ;;
        checked) grep -aq '^CHECKED' "$log" && moment=checked ;;
        time) grep -aq '^CHECKED' "$log" && [ "$acknowledged" -ge "$wanted" ] && moment=time ;;
        # The step that was chosen did not come.
        *) [ "$acknowledged" -lt 150 ] || moment=time ;;
        esac
        if [ -n "$moment" ]; then
            [ "$moment" = checked ] || sleep "0.$((RANDOM % 10))"
            return
        fi
        sleep 0.05
    done
}

# Runs guests that change a file and lose their power; each checks what the one before has left.
kills() { # KILLS FS LEVEL DOMAIN KIND NAME
    local count=$1 fs=$2 level=$3 domain=$4 kind=$5 name=$6 round acknowledged=0 firsts=""
    local log=$work/guest.log chosen moment said found more
    steps=()
    format nvdimm "$fs"
    for round in $(seq $((count + 1))); do
        choose "$kind"
        # Every other file is not completely created by the first guest.
        [ "$round" != 1 ] || chosen=time
        [ "$round" != 1 ] || [ "$kind" = server ] || [ $((way % 2)) = 0 ] || chosen=creation
        # The last one only checks.
        [ "$round" -le "$count" ] || chosen=checked
        local die=()
        case $chosen in
        first | checked | time) ;;
        *) die=("DIE=$chosen:$(step_of "$chosen")") ;;
        esac
        guest nvdimm "$fs" "$domain" "${die[@]}" evermap-machines "$kind" "$name" "$level" /mnt/file \
            >"$log" 2>&1 </dev/null &
        local machine=$!
        await "$machine" "$log" "$chosen"
        kill -9 "$machine" 2>/dev/null || true
        wait "$machine" 2>/dev/null || true
        found=$(last CHECKED "$log") || true
        said=$(tr -d '\r' <"$log" | grep -a -m 1 '^WRONG\|^DONE' || true)
        # A guest that ended or hung before it was to be killed has shown nothing.
        if [ -z "$moment" ] || [ -n "$said" ] || [ "${found:-$acknowledged}" -lt "$acknowledged" ]; then
            echo "FAILED: $*, kill $round at $chosen ${die[*]}: $acknowledged acknowledged," \
                "${found:-none} found; ${said:-$(tail -c 2000 "$log")}"
            cp "$log" "$work/failed.log"
            failed=1
            return
        fi
        [ "$moment" = checked ] || ended[$moment]=$((${ended[$moment]:-0} + 1))
        more=$(last ACK "$log") || true
        acknowledged=${more:-${found:-$acknowledged}}
        firsts+=" $(tr -d '\r' <"$log" | sed -n 's/^FIRST answer after \([0-9]*\).*/\1/p')"
        local seen
        for seen in creation opening recovery sweep compaction; do
            more=$(last "STEPS $seen" "$log") || true
            [ "${more:-0}" = 0 ] || steps[$seen]=$more
        done
    done
    echo "ok: ${*:2}: $count kills, $acknowledged steps acknowledged, first answers after" \
        "$(xargs <<<"$firsts") ms"
}

build
echo "seed $seed"
chosen_subjects=()
for subject in "${subjects[@]}"; do
    [[ $subject =~ $pattern ]] && chosen_subjects+=("$subject")
done
[ "$pattern" != . ] || grants
each=$(((kills + ${#chosen_subjects[@]} - 1) / ${#chosen_subjects[@]}))
for subject in "${chosen_subjects[@]}"; do
    # shellcheck disable=SC2086 # the words of a subject
    kills $each $subject
done
for moment in "${!ended[@]}"; do
    echo "kills at the moment $moment: ${ended[$moment]}"
done | sort
exit $failed
