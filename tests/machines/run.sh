#!/usr/bin/env bash
# Virtual machines with emulated persistent memory, which are killed while Evermap changes a file
# in it: `tests/machines/run.sh [KILLS]`, so many for each index and for the store (8 by default).
#
# Needs, on Debian as root: qemu-system-x86 busybox-static cpio kmod e2fsprogs xfsprogs. The kernel
# of the guests is downloaded with apt-get and not installed. No module of this machine is used.
# The emulated memory keeps every store of a guest, so nothing is said about what a cache can lose;
# the crash simulator is there for that.
set -euo pipefail
cd "$(dirname "$0")/../.."
kills=${1-8}
seed=${SEED-$RANDOM}
flavour=cloud-amd64
indexes=(dash-eh dash-lh cceh level p-clht line-hash tranche p-art fast-fair p-bwtree p-masstree p-hot)
stores=(dash-eh level tranche)

target=${CARGO_TARGET_DIR:-target}
work=$target/machines
declare -A megabytes=([ext4]=256 [xfs]=400)
failed=0
RANDOM=$seed

# Unpacks a kernel, and packs what a guest starts with: modules, busybox and the program.
prepare() {
    mkdir -p "$work"
    local package=("$work"/linux-image-*.deb)
    if [ ! -e "${package[0]}" ]; then
        local name
        name=$(apt-cache depends "linux-image-$flavour" | awk '/Depends: linux-image/ {print $2; exit}')
        (cd "$work" && apt-get download -qq "$name")
        package=("$work"/linux-image-*.deb)
    fi
    local root=$work/root kernel=$work/kernel
    rm -rf "$root" "$kernel"
    mkdir -p "$kernel" "$root"/{bin,modules,proc,sys,dev,mnt}
    dpkg-deb -x "${package[0]}" "$kernel"
    local version
    version=$(ls "$kernel/lib/modules")
    depmod -b "$kernel" "$version"
    local module file
    for module in nfit nd_pmem virtio_pci virtio_blk virtio_pmem device_dax dax_pmem ext4 xfs; do
        modprobe -C /dev/null -d "$kernel" -S "$version" --show-depends "$module" |
            awk '/^insmod/ {print $2}'
    done | awk '!seen[$0]++' | while read -r file; do
        cp "$file" "$root/modules/"
        basename "$file" >>"$root/modules/order"
    done
    install -m 755 tests/machines/init "$root/init"
    cp "$(command -v busybox)" "$root/bin/busybox"
    local program=evermap-machines library
    strip -o "$root/bin/$program" "$target/release/$program"
    for library in $(ldd "$root/bin/$program" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -L "$library" "$root$library"
    done
    (cd "$root" && find . | cpio -o -H newc --quiet | gzip -1 >../initrd.gz)
    cp "$kernel"/boot/vmlinuz-* "$work/vmlinuz"
}

# Makes an empty file system of a kind, for the memory of the kind of device.
format() { # DEVICE FS
    local image=$work/$1.img size=${megabytes[$2]} begin=0
    # Before it is a superblock of the namespace.
    [ "$1" != nvdimm ] || begin=2
    rm -f "$image" "$work/fs.img"
    truncate -s "$((size - begin))M" "$work/fs.img"
    case $2 in
    ext4) mkfs.ext4 -q -F -b 4096 "$work/fs.img" ;;
    xfs) mkfs.xfs -q -f -m reflink=0 "$work/fs.img" ;;
    esac
    truncate -s "${size}M" "$image"
    dd if="$work/fs.img" of="$image" bs=1M seek="$begin" conv=notrunc,sparse status=none
}

# Runs a command in a guest until it ends or is killed.
guest() { # DEVICE FS DOMAIN COMMAND...
    local device=$1 fs=$2 domain=$3 size=${megabytes[$2]}
    shift 3
    local run memory=()
    run=$(IFS=,; echo "$*")
    case $device in
    nvdimm)
        memory=(-object "memory-backend-file,id=m,share=on,mem-path=$work/nvdimm.img,size=${size}M,align=2M"
            -device nvdimm,id=n,memdev=m)
        ;;
    virtio)
        memory=(-object "memory-backend-file,id=m,share=on,mem-path=$work/virtio.img,size=${size}M"
            -device virtio-pmem-pci,memdev=m,id=v)
        ;;
    disk)
        memory=(-drive "file=$work/disk.img,if=none,id=d,format=raw,cache=writeback"
            -device virtio-blk-pci,drive=d)
        ;;
    esac
    exec qemu-system-x86_64 -accel tcg -cpu max -smp 1 -m 512M,slots=4,maxmem=4G \
        -machine "pc,nvdimm=on,nvdimm-persistence=$domain" "${memory[@]}" \
        -nodefaults -display none -serial stdio -monitor none -no-reboot \
        -kernel "$work/vmlinuz" -initrd "$work/initrd.gz" \
        -append "console=ttyS0 quiet panic=-1 tsc=reliable guest_fs=$fs guest_device=$device guest_run=$run"
}

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

# The last number behind a word in what a guest has said.
last() { # WORD FILE
    tr -d '\r' <"$2" | awk -v word="$1" '$1 == word {number = $2} END {print number}'
}

# Kills guests that change a file, each at another moment; the next one checks what it finds.
kills() { # FS SUBJECT...
    local fs=$1 round acknowledged=0 log=$work/guest.log
    shift
    format nvdimm "$fs"
    for round in $(seq "$kills"); do
        guest nvdimm "$fs" mem-ctrl evermap-machines "$@" adr /mnt/file >"$log" 2>&1 </dev/null &
        local machine=$! wanted=$((RANDOM % 40))
        # Every fourth one is killed while it opens the file and looks at it.
        local sign=CHECKED
        [ $((round % 4)) != 0 ] || sign=FIRST wanted=0
        local moment="" end=$((SECONDS + 300))
        while kill -0 "$machine" 2>/dev/null && [ $SECONDS -lt $end ]; do
            grep -aq '^WRONG\|^DONE' "$log" && break
            if grep -aq "^$sign" "$log" && [ "$(grep -ac '^ACK' "$log")" -ge "$wanted" ]; then
                sleep "0.$((RANDOM % 10))"
                moment=reached
                break
            fi
            sleep 0.05
        done
        kill -9 "$machine" 2>/dev/null || true
        wait "$machine" 2>/dev/null || true
        local found said
        found=$(last CHECKED "$log")
        said=$(tr -d '\r' <"$log" | grep -a -m 1 '^WRONG\|^DONE' || true)
        # A guest that ended or hung before it was to be killed has shown nothing.
        if [ -z "$moment" ] || [ -n "$said" ] || [ "${found:-$acknowledged}" -lt "$acknowledged" ]; then
            echo "FAILED: $fs $*, kill $round: $acknowledged acknowledged, ${found:-none} found; $said"
            failed=1
            return
        fi
        local more
        more=$(last ACK "$log")
        acknowledged=${more:-${found:-$acknowledged}}
    done
    echo "ok: $fs $*: $kills kills, $acknowledged steps acknowledged, $(tr -d '\r' <"$log" | grep -a '^FIRST' || true)"
}

cargo build --release --quiet -p evermap-machines
prepare
echo "seed $seed"
grants
for index in "${indexes[@]}"; do kills ext4 index "$index"; done
for index in "${stores[@]}"; do kills ext4 store "$index"; done
kills xfs store dash-eh
exit $failed
