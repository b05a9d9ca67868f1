# Functions for scripts that run guests with emulated persistent memory, or with a disk. To be
# sourced.
#
# Needs, on Debian as root: qemu-system-x86 busybox-static cpio kmod e2fsprogs xfsprogs. The kernel
# of the guests is downloaded with apt-get and not installed. No module of this machine is used.
flavour=cloud-amd64
target=${CARGO_TARGET_DIR:-target}
work=$target/machines
# What QEMU is told of the clock of a guest.
clock=()
# What else is on the command line of its kernel.
more_words=""
declare -A megabytes=([ext4]=512 [xfs]=400)

# Builds what guests run, unless PROGRAMS is a folder that has it, and packs it with a kernel.
build() {
    [ -n "${PROGRAMS-}" ] ||
        cargo build --release --quiet -p evermap-cli -p evermap-machines -p evermap-power
    prepare
}

# Unpacks a kernel, and packs what a guest starts with: modules, busybox and the program.
prepare() {
    mkdir -p "$work"
    local package=("$work"/linux-image-*.deb)
    if [ ! -e "${package[0]}" ]; then
        local name
        name=$(apt-cache depends "linux-image-$flavour" |
            awk '/Depends: linux-image/ {print $2; exit}')
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
    local program library
    for program in evermap evermap-machines evermap-power; do
        strip -o "$root/bin/$program" "${PROGRAMS:-$target/release}/$program"
        for library in $(ldd "$root/bin/$program" | grep -o '/[^ ]*'); do
            mkdir -p "$root$(dirname "$library")"
            cp -L "$library" "$root$library"
        done
    done
    (cd "$root" && find . | cpio -o -H newc --quiet >../initrd)
    cp "$kernel"/boot/vmlinuz-* "$work/vmlinuz"
}

# Makes a file system of a kind, for the memory of the kind of device: empty, or with the files of a
# folder, if it is ext4.
format() { # DEVICE FS [FOLDER]
    local image=$work/$1.img size=${megabytes[$2]} begin=0
    # Before it is a superblock of the namespace.
    [ "$1" != nvdimm ] || begin=2
    rm -f "$image"
    truncate -s "${size}M" "$image"
    case $2 in
    ext4)
        mkfs.ext4 -q -F -b 4096 -E "offset=$((begin << 20))" ${3:+-d "$3"} "$image" \
            "$((size - begin))M"
        ;;
    xfs)
        truncate -s "$((size - begin))M" "$work/fs.img"
        mkfs.xfs -q -f -m reflink=0 "$work/fs.img"
        dd if="$work/fs.img" of="$image" bs=1M seek="$begin" conv=notrunc,sparse status=none
        rm "$work/fs.img"
        ;;
    esac
}

# Runs a command in a guest until it ends or is killed.
guest() { # DEVICE FS DOMAIN COMMAND...
    local device=$1 fs=$2 domain=$3 size=${megabytes[$2]}
    shift 3
    local run backend memory=()
    # The command line of a kernel is divided at blanks.
    run=$(IFS=,; echo "$*")
    case $device in
    nvdimm)
        backend="memory-backend-file,id=m,share=on,mem-path=$work/nvdimm.img,size=${size}M"
        memory=(-object "$backend,align=2M"
            -device nvdimm,id=n,memdev=m)
        ;;
    virtio)
        backend="memory-backend-file,id=m,share=on,mem-path=$work/virtio.img,size=${size}M"
        memory=(-object "$backend"
            -device virtio-pmem-pci,memdev=m,id=v)
        ;;
    disk)
        memory=(-drive "file=$work/disk.img,if=none,id=d,format=raw,cache=writeback"
            -device virtio-blk-pci,drive=d)
        ;;
    esac
    # On a busy machine the kernel may not see its timer in time to believe in it.
    local kernel="console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check"
    # Instructions are emulated, and nobody attacks it.
    kernel+=" mitigations=off nokaslr cryptomgr.notests"
    exec qemu-system-x86_64 -accel tcg "${clock[@]}" -cpu max -smp 1 -m 512M,slots=4,maxmem=4G \
        -machine "pc,nvdimm=on,nvdimm-persistence=$domain" "${memory[@]}" \
        -nodefaults -display none -serial stdio -monitor none -no-reboot \
        -kernel "$work/vmlinuz" -initrd "$work/initrd" \
        -append "$kernel guest_fs=$fs guest_device=$device guest_run=$run $more_words"
}
