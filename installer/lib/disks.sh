# The disks of this machine: which there are, what they are called, and which one an order means.
#
# Never a disk that can be pulled out, that cannot be written, or that hangs on USB (virtual media of a BMC do).

# disks: their kernel names
disks() {
    for block in /sys/block/*; do
        [ -e "$block/device" ] || continue
        [ "$(cat "$block/removable")" = 0 ] && [ "$(cat "$block/ro")" = 0 ] && [ "$(cat "$block/size")" != 0 ] || continue
        [ "$(cat "$block/hidden" 2>/dev/null)" != 1 ] || continue
        case $(readlink -f "$block") in */usb*) continue ;; esac
        case ${block##*/} in sr* | fd* | mmcblk*boot*) continue ;; esac
        echo "${block##*/}"
    done
}

disk_bytes() {
    # the kernel counts in 512 bytes whatever the disk does
    echo $(($(cat "/sys/block/$1/size") * 512))
}

# trimmed: without what cannot be printed, nor spaces around it
trimmed() {
    tr -c ' -~' ' ' | sed 's/^ *//; s/ *$//'
}

# ata_identity NAME: of a SATA disk, its whole model and its serial number, 40 and 20 characters wide
ata_identity() {
    cat "/sys/block/$1/device/vpd_pg83" 2>/dev/null | tr -c ' -~' '?' | sed -n 's/.*ATA     \(.\{40\}\)\(.\{20\}\).*/\1\2/p'
}

disk_model() {
    ata=$(ata_identity "$1" | cut -c 1-40)
    if [ -n "$ata" ]; then
        echo "$ata" | trimmed
    else
        cat "/sys/block/$1/device/model" 2>/dev/null | trimmed
    fi
}

disk_serial() {
    for file in serial device/serial; do
        if [ -e "/sys/block/$1/$file" ]; then
            trimmed <"/sys/block/$1/$file"
            return
        fi
    done
    # of a SCSI disk: page 0x80, behind its header of four bytes
    tail -c +5 "/sys/block/$1/device/vpd_pg80" 2>/dev/null | trimmed
}

# disk_ids NAME: what it is called below /dev/disk/by-id, as udev would. There is no udev here.
disk_ids() {
    model=$(disk_model "$1") serial=$(disk_serial "$1")
    wwid=$(cat "/sys/block/$1/wwid" "/sys/block/$1/device/wwid" 2>/dev/null | head -n 1 | trimmed)
    case $1 in
        vd*) [ -z "$serial" ] || echo "virtio-$serial" ;;
        nvme*)
            [ -z "$wwid" ] || echo "nvme-$wwid"
            echo "nvme-${model}_$serial" | tr ' ' _
            ;;
        sd*)
            if [ -n "$(ata_identity "$1")" ]; then echo "ata-${model}_$serial" | tr -s ' ' _; fi
            case $wwid in
                naa.*)
                    echo "wwn-0x${wwid#naa.}"
                    echo "scsi-3${wwid#naa.}"
                    ;;
            esac
            ;;
    esac
}

# disk_list: for an error's text
disk_list() {
    seen=
    for name in $(disks); do
        seen="$seen; $name: $(disk_bytes "$name") bytes, model '$(disk_model "$name")', serial '$(disk_serial "$name")'"
    done
    echo "the disks here:${seen:-; none}" | sed 's/:;/:/'
}

# settle_disks: until no more come for three seconds. Some controllers take their time; none at all is waited for longer.
settle_disks() {
    calm=0 waited=0 before=
    while [ $waited -lt 120 ]; do
        now=$(disks)
        if [ "$now" = "$before" ]; then calm=$((calm + 1)); else calm=0; fi
        before=$now
        if [ -n "$now" ] && [ $calm -ge 6 ]; then break; fi
        if [ -z "$now" ] && [ $calm -ge 40 ]; then break; fi
        waited=$((waited + 1))
        sleep 0.5
    done
}

# is_called NAME WANTED: whether the order's name, a device or something below /dev/disk/by-id, is this disk's
is_called() {
    case $2 in
        /dev/disk/by-id/*) disk_ids "$1" | grep -qxF -- "${2#/dev/disk/by-id/}" ;;
        *) [ "/dev/$1" = "$2" ] ;;
    esac
}

# named_disks: those that the order's name and serial number mean; with neither, all
named_disks() {
    for name in $(disks); do
        case $order_disk in
            '' | auto | all) ;;
            *) is_called "$name" "$order_disk" || continue ;;
        esac
        [ -z "$order_disk_serial" ] || [ "$(disk_serial "$name")" = "$order_disk_serial" ] || continue
        echo "$name"
    done
}

# choose_disk BYTES: the one to install on, into $disk. Named ones must be one and large enough; otherwise it is the
# smallest that is large enough. Two of that size are in doubt: which of them an attempt before this one has written, or
# which holds somebody's data, is not for us to guess.
choose_disk() {
    settle_disks
    wanted="${order_disk:-auto}${order_disk_serial:+ with serial number $order_disk_serial}"
    found=$(named_disks)
    if [ -z "$found" ]; then
        fail "there is no disk for '$wanted'; $(disk_list)"
        return 1
    fi
    fits=$(for name in $found; do
        bytes=$(disk_bytes "$name")
        [ "$bytes" -lt "$1" ] || echo "$bytes $name"
    done | sort -n)
    if [ -z "$fits" ]; then
        fail "disk too small: $1 bytes are needed for '$wanted'; $(disk_list)"
        return 1
    fi
    smallest=$(echo "$fits" | head -n 1)
    if [ "$(echo "$fits" | grep -c "^${smallest%% *} ")" != 1 ]; then
        fail "several disks could be meant by '$wanted', say which by its serial number; $(disk_list)"
        return 1
    fi
    disk=${smallest##* }
    say "disk $disk: $(disk_bytes "$disk") bytes, model '$(disk_model "$disk")', serial '$(disk_serial "$disk")'"
}

# kernel_errors NAME: what the kernel has said about a disk that does not work, if anything
kernel_errors() {
    dmesg | grep -E "(error|failed|rejecting).*$1|$1.*(error|failed)" | tail -n 1 | sed 's/^.*] /; the kernel: /'
}
