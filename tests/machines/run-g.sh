#!/usr/bin/env bash
# Virtual machines with emulated persistent memory, which lose their power while Evermap changes
# files in it: `tests/machines/run.sh [MACHINES [PATTERN]]`, so many (16 by default), divided among
# all groups, or those that match the pattern.
#
# Each machine has many files: one for each index, and some stores and servers. Most of them end
# themselves, when the work on one of the files comes to a certain step of a moment: the creation of
# the file, its growth, a compaction, an opening, the recovery after it, a sweep. What is done to
# the other files ends anywhere. The host kills other machines at any time.
#
# The emulated memory keeps every store of a guest, so nothing is said about what a cache can lose;
# the crash simulator is there for that. SEED repeats the choices, PROGRAMS is a folder with what
# else is built, machines/kills.log in the target folder has a line for each end. See guests.sh for
# what is needed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/machines/guests.sh
. tests/machines/guests.sh
machines=${1-16}
pattern=${2-.}
seed=${SEED-$RANDOM}
failed=0
RANDOM=$seed

# File system, level, domain, and what is changed.
groups=(
    "ext4 adr mem-ctrl $(echo index.{dash-eh,dash-lh,cceh,level,p-clht,line-hash,tranche})
        $(echo index.{p-art,fast-fair,nv-tree,fp-tree,hikv,p-bwtree,p-masstree,p-hot} store.{dash-eh,level,tranche})
        server.dash-eh server.level"
    "xfs adr mem-ctrl index.dash-eh index.p-art store.dash-eh server.dash-eh"
    "ext4 eadr cpu index.level index.p-hot store.dash-lh server.cceh"
)
# How machines end, one after another: at a moment of one file, or at any time.
ways=(growth recovery compaction opening time sweep first compaction growth recovery sweep time)
way=0
# How many files were in use at each moment when their machines ended.
declare -A ended
# Of each subject: what it has acknowledged; the last step of each moment that was seen.
declare -A acknowledged steps

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

# What the level needs is there, or it is refused with the reason. Where it is there, snapshots and
# backups of a store that is being changed are of one moment.
grants() {
    local grant=(evermap-machines grant)
    local fs
    for fs in ext4 xfs; do
        format nvdimm $fs
        expect "GRANTED adr on $fs" nvdimm $fs mem-ctrl "${grant[@]}" adr /mnt/file
        expect "GRANTED process on $fs" nvdimm $fs mem-ctrl "${grant[@]}" process /mnt/file
        expect "GRANTED adr on $fs" nvdimm $fs mem-ctrl "${grant[@]}" adr /mnt/file
        expect "is .memory_controller.: .cpu_cache. is needed" \
            nvdimm $fs mem-ctrl "${grant[@]}" eadr /mnt/file
        expect "COPIED adr" nvdimm $fs mem-ctrl evermap-power copies /mnt/copied adr
        expect "GRANTED eadr on $fs" nvdimm $fs cpu "${grant[@]}" eadr /mnt/file
    done
    format virtio ext4
    expect "flush kind .adr.: " virtio ext4 mem-ctrl "${grant[@]}" adr /mnt/file
    format disk ext4
    expect "no persistent memory" disk ext4 mem-ctrl "${grant[@]}" adr /mnt/file
    expect "GRANTED process" disk ext4 mem-ctrl "${grant[@]}" process /mnt/file
}

# The number in the last line of a subject that begins so. A line that was not sent completely has
# something else at its end.
last() { # SUBJECT BEGINNING
    local name="$1 "
    [ "$1" != "$dies" ] || name=""
    grep -aE "^$name$2 [0-9]+$" "$said" | tail -1 | awk '{print $NF}' || true
}

# Chooses how the next machine ends, and if a file decides, which one, and at which step.
choose() { # SUBJECT...
    local candidates=() subject
    chosen=${ways[way++ % ${#ways[@]}]} dies="" die=""
    case $chosen in time | first) return ;; esac
    for subject in "$@"; do
        case $chosen:$subject in
        # Where a server is, is not known from outside of it, and only records are moved.
        *:server.* | compaction:index.*) ;;
        *) candidates+=("$subject") ;;
        esac
    done
    dies=${candidates[RANDOM % ${#candidates[@]}]}
    # Up to the last step that was seen. Of growth there is always more.
    local most=${steps[$dies $chosen]:-40}
    [ "$chosen" != growth ] || most=96
    die=$chosen:$((RANDOM % most + 1))
}

# Waits until a guest has ended itself, or until it is to be killed. Sets `moment` to what it did
# then, or leaves it empty. In `said` is what it has said.
await() { # MACHINE LOG FILES
    local machine=$1 log=$2 files=$3 wanted=$((RANDOM % 20)) end=$((SECONDS + 540)) runs=1
    moment=""
    while [ -n "$runs" ] && [ $SECONDS -lt $end ]; do
        kill -0 "$machine" 2>/dev/null || runs=""
        tr -d '\r' <"$log" >"$said"
        ! grep -aq 'WRONG\|^DONE\|panic' "$said" || return 0
        if grep -aq '^DIED' "$said"; then
            [ -n "$runs" ] || moment=$chosen
        else
            local firsts checked changed
            firsts=$(grep -ac 'FIRST answer' "$said") || true
            checked=$(grep -ac 'CHECKED' "$said") || true
            changed=$(grep -a ' ACK ' "$said" | cut -d " " -f 1 | sort -u | wc -l) || true
            case $chosen in
            first) [ "$firsts" -le $((wanted % files)) ] || moment=time ;;
            checked) [ "$checked" -lt "$files" ] || moment=checked ;;
            time) [ "$changed" -lt "$files" ] || moment=time ;;
            # The step that was chosen did not come.
            *) [ "$(grep -ac '^ACK' "$said")" -lt 60 ] || moment=time ;;
            esac
            if [ -n "$moment" ]; then
                [ "$moment" = checked ] || sleep "$((wanted % 2)).$((RANDOM % 10))"
                return 0
            fi
        fi
        sleep 0.1
    done
}

# Returns what was done to a file when its machine ended.
doing() { # SUBJECT
    local name="$1 "
    [ "$1" != "$dies" ] || name=""
    if [ "$1" = "$dies" ] && [ "$moment" = "$chosen" ]; then
        echo "$moment"
    elif ! grep -aq "^${name}FIRST " "$said"; then
        # Or creation, if it was not there yet.
        echo opening
    elif [ -z "$(last "$1" CHECKED)" ]; then
        echo recovery
    else
        echo use
    fi
}

# Compares what was found in a file with what was acknowledged before.
judge() { # SUBJECT
    local found more seen before=${acknowledged[$1]:-0} at
    found=$(last "$1" CHECKED)
    at=$(doing "$1")
    echo "machine $number ($chosen $dies $die), $1: $before acknowledged before," \
        "${found:-not} found, ended in $at" >>"$work/kills.log"
    if [ "${found:-$before}" -lt "$before" ]; then
        echo "FAILED: machine $number, $1: $before acknowledged, $found found"
        failed=1
    fi
    [ "$moment" = checked ] || ended[$at]=$((${ended[$at]:-0} + 1))
    more=$(last "$1" ACK)
    acknowledged[$1]=${more:-${found:-$before}}
    for seen in creation opening recovery sweep compaction; do
        more=$(last "$1" "STEPS $seen")
        [ "${more:-0}" = 0 ] || steps[$1 $seen]=$more
    done
}

# Runs machines that change files and lose their power; each checks what the one before has left.
kills() { # MACHINES FS LEVEL DOMAIN SUBJECT...
    local count=$1 fs=$2 level=$3 domain=$4 log=$work/guest.log subject number
    local chosen dies die moment
    shift 4
    acknowledged=() steps=() said=$work/said
    format nvdimm "$fs"
    for number in $(seq $((count + 1))); do
        choose "$@"
        # The first one does not complete the creation of a file, and the last one only checks.
        if [ "$number" = 1 ]; then
            dies=$1 chosen=creation die=creation:$((RANDOM % 200 + 1))
        elif [ "$number" -gt "$count" ]; then
            chosen=checked dies="" die=""
        fi
        more_words="guest_subjects=$(IFS=,; echo "$*") guest_last=$dies guest_die=$die"
        guest nvdimm "$fs" "$domain" each "$level" >"$log" 2>&1 </dev/null &
        local machine=$!
        await "$machine" "$log" $#
        kill -9 "$machine" 2>/dev/null || true
        wait "$machine" 2>/dev/null || true
        tr -d '\r' <"$log" >"$said"
        # A guest that ended or hung before it was to be killed has shown nothing.
        if [ -z "$moment" ]; then
            echo "FAILED: $fs $level, machine $number ($chosen $dies $die):" \
                "$(grep -a WRONG "$said" || tail -c 2000 "$said")"
            cp "$said" "$work/failed.log"
            failed=1
            return
        fi
        for subject in "$@"; do judge "$subject"; done
    done
    more_words=""
    for subject in "$@"; do
        echo "ok: $fs $level $subject: ${acknowledged[$subject]} steps acknowledged and found"
    done
    echo "$fs $level: $count machines with $# files each"
}

build
rm -f "$work/kills.log"
echo "seed $seed"
chosen_groups=()
for group in "${groups[@]}"; do
    [[ $group =~ $pattern ]] && chosen_groups+=("$group")
done
grants
each=$(((machines + ${#chosen_groups[@]} - 1) / ${#chosen_groups[@]}))
for group in "${chosen_groups[@]}"; do
    # shellcheck disable=SC2086 # the words of a group
    kills $each $group
done
for moment in "${!ended[@]}"; do
    echo "files in $moment when their machine ended: ${ended[$moment]}"
done | sort
exit $failed
