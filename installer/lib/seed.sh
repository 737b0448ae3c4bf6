# The seed for cloud-init (NoCloud): its files, on a small FAT file system with the label CIDATA, in a partition of its own
# at the end of the disk. cloud-init looks at every partition for that label. At the end, because an image's last partition
# is usually the one that grows on first boot, and grows up to it.
#
# The image must have a partition table, MBR with a free entry or GPT: a file system behind an image without one would be
# found by nobody. A GPT's second copy, which in an image stands at the image's end, moves to the disk's end with it.

# 48 MiB: FAT32 is what busybox makes, and below 33 MiB it would not be one by the book
SEED_MIB=48
# and up to 2 MiB for its alignment and the second copy of a GPT
SEED_ROOM=$(((SEED_MIB + 2) << 20))

get_seed_file() {
    call "$url/api/v1/boot/seed/$1" "$RUN/seed/$1"
}

# get_seed: before anything is written
get_seed() {
    rm -rf $RUN/seed
    mkdir -p $RUN/seed
    for file in meta-data user-data; do
        persist get_seed_file $file || { fail "the server does not give the seed's $file: $http_error"; return 1; }
    done
    if ! persist get_seed_file network-config; then
        case $http_error in
            *' 404'*) rm -f $RUN/seed/network-config ;;
            *) fail "the server does not give the seed's network-config: $http_error"; return 1 ;;
        esac
    fi
}

# little_endian HEX: as a number
little_endian() {
    turned=
    left=$1
    while [ -n "$left" ]; do
        turned=$(printf '%.2s' "$left")$turned
        left=${left#??}
    done
    echo $((0x${turned:-0}))
}

# bytes_of NUMBER COUNT: as hex, little end first
bytes_of() {
    left=$1 count=$2
    while [ "$count" -gt 0 ]; do
        printf '%02x' $((left & 255))
        left=$((left >> 8)) count=$((count - 1))
    done
}

# hex FILE OFFSET COUNT
hex() {
    dd if="$1" bs=1 skip="$2" count="$3" 2>/dev/null | xxd -p | tr -d '\n'
}

field() {
    little_endian "$(hex "$1" "$2" "$3")"
}

# put FILE OFFSET HEX
put() {
    printf '%s' "$3" | xxd -r -p | dd of="$1" bs=1 seek="$2" conv=notrunc 2>/dev/null
}

# crc FILE OFFSET COUNT: as the tables have it
crc() {
    dd if="$1" bs=1 skip="$2" count="$3" 2>/dev/null >$RUN/crc
    bytes_of $((0x$(crc32 $RUN/crc | cut -d ' ' -f 1))) 4
}

# on_disk FILE SECTOR: written there
on_disk() {
    dd if="$1" of="/dev/$disk" bs="$sector" seek="$2" conv=notrunc,fsync 2>$RUN/table.error ||
        fail "writing the partition table of $disk failed: $(last_line $RUN/table.error)$(kernel_errors "$disk")"
}

# seed_place LAST: the first sector of the seed, on a whole MiB, with LAST the last sector it may use
seed_place() {
    echo $((($1 + 1 - mib * SEED_MIB) / mib * mib))
}

# beyond END: whether the place is free of what the image has there
beyond() {
    end=$1
    image_end=$(((written_bytes + sector - 1) / sector))
    [ "$end" -ge $image_end ] || end=$image_end
    [ "$start" -ge "$end" ] ||
        fail "no room for the seed on $disk: it would begin at sector $start, the image and its partitions end at $end"
}

# add_to_mbr: an entry in the first free of four places
add_to_mbr() {
    last=$((sectors - 1))
    # what the table's four bytes can say
    [ $last -lt 4294967295 ] || last=4294967294
    start=$(seed_place $last)
    free= highest=0
    for slot in 0 1 2 3; do
        at=$((446 + slot * 16))
        if [ "$(field $RUN/table $((at + 4)) 1)" = 0 ]; then
            [ -n "$free" ] || free=$slot
        else
            end=$(($(field $RUN/table $((at + 8)) 4) + $(field $RUN/table $((at + 12)) 4)))
            [ $end -le $highest ] || highest=$end
        fi
    done
    if [ -z "$free" ]; then
        fail "no room for the seed: the image's partition table has no free entry"
        return 1
    fi
    beyond $highest || return 1
    put $RUN/table $((446 + free * 16)) "00feffff0cfeffff$(bytes_of "$start" 4)$(bytes_of $((SEED_MIB * mib)) 4)"
    dd if=$RUN/table of=$RUN/first bs="$sector" count=1 2>/dev/null
    on_disk $RUN/first 0 || return 1
    partition=$((free + 1))
}

# gpt_header OWN OTHER ENTRIES: the header, for one of its two places, in $RUN/header
gpt_header() {
    dd if=$RUN/table of=$RUN/header bs="$sector" skip=1 count=1 2>/dev/null
    put $RUN/header 24 "$(bytes_of "$1" 8)$(bytes_of "$2" 8)"
    put $RUN/header 48 "$(bytes_of $((sectors - 2 - entry_sectors)) 8)"
    put $RUN/header 72 "$(bytes_of "$3" 8)"
    put $RUN/header 88 "$(crc $RUN/entries 0 $((entry_count * entry_bytes)))"
    put $RUN/header 16 00000000
    put $RUN/header 16 "$(crc $RUN/header 0 "$(field $RUN/header 12 4)")"
}

# add_to_gpt: an entry in the first free place, and the second copy of the table to the disk's end
add_to_gpt() {
    entries_at=$(field $RUN/table $((sector + 72)) 8)
    entry_count=$(field $RUN/table $((sector + 80)) 4)
    entry_bytes=$(field $RUN/table $((sector + 84)) 4)
    entry_sectors=$(((entry_count * entry_bytes + sector - 1) / sector))
    if [ $entry_bytes -lt 128 ] || [ $entry_count -gt 1024 ] || [ $((entries_at + entry_sectors)) -gt $mib ]; then
        fail "the image's partition table is none that this installer can add to ($entry_count entries of $entry_bytes bytes)"
        return 1
    fi
    dd if=$RUN/table of=$RUN/entries bs="$sector" skip="$entries_at" count=$entry_sectors 2>/dev/null
    start=$(seed_place $((sectors - 2 - entry_sectors)))
    free= highest=0 slot=0
    # used entries usually come first; twenty free ones in a row are the rest
    while [ $slot -lt $entry_count ] && [ $slot -lt $((${free:-$slot} + 20)) ]; do
        at=$((slot * entry_bytes))
        if [ "$(hex $RUN/entries $at 16)" = 00000000000000000000000000000000 ]; then
            [ -n "$free" ] || free=$slot
        else
            end=$(($(field $RUN/entries $((at + 40)) 8) + 1))
            [ $end -le $highest ] || highest=$end
        fi
        slot=$((slot + 1))
    done
    if [ -z "$free" ]; then
        fail "no room for the seed: the image's partition table has no free entry"
        return 1
    fi
    beyond $highest || return 1
    # basic data; an id of its own; from, to; no attributes; "CIDATA"
    put $RUN/entries $((free * entry_bytes)) "a2a0d0ebe5b9334487c068b6b72699c7$(head -c 16 /dev/urandom | xxd -p)$(
        bytes_of "$start" 8)$(bytes_of $((start + SEED_MIB * mib - 1)) 8)0000000000000000430049004400410054004100"
    gpt_header 1 $((sectors - 1)) "$entries_at"
    on_disk $RUN/entries "$entries_at" && on_disk $RUN/header 1 || return 1
    gpt_header $((sectors - 1)) 1 $((sectors - 1 - entry_sectors))
    on_disk $RUN/entries $((sectors - 1 - entry_sectors)) && on_disk $RUN/header $((sectors - 1)) || return 1
    # the protective entry spans the whole disk
    put $RUN/table $((446 + 12)) "$(bytes_of $((sectors - 1 < 4294967295 ? sectors - 1 : 4294967295)) 4)"
    dd if=$RUN/table of=$RUN/first bs="$sector" count=1 2>/dev/null
    on_disk $RUN/first 0 || return 1
    partition=$((free + 1))
}

add_partition() {
    sector=$(cat "/sys/block/$disk/queue/logical_block_size")
    sectors=$(($(disk_bytes "$disk") / sector))
    mib=$((1048576 / sector))
    dd if="/dev/$disk" of=$RUN/table bs=1M count=1 2>/dev/null
    if [ "$(hex $RUN/table 510 2)" != 55aa ]; then
        fail "no place for the seed: the image has no partition table; use one that has, or an order without a seed"
    elif [ "$(hex $RUN/table "$sector" 8)" = 4546492050415254 ]; then
        add_to_gpt
    else
        add_to_mbr
    fi
}

# seed_device: where the kernel shows the partition, once it does
seed_device() {
    case $disk in *[0-9]) device=/dev/${disk}p$partition ;; *) device=/dev/$disk$partition ;; esac
    blockdev --rereadpt "/dev/$disk" 2>$RUN/table.error
    waited=0
    until [ -b "$device" ]; do
        waited=$((waited + 1))
        if [ $waited -ge 50 ]; then
            fail "the seed's partition $device does not appear: $(last_line $RUN/table.error)"
            return 1
        fi
        sleep 0.2
    done
}

mounted() {
    mount -t vfat -o "$1" "$device" $RUN/mounted 2>$RUN/mount.error || fail "mounting $device failed: $(last_line $RUN/mount.error)"
}

# same_files: whether the partition gives back what was put in
same_files() {
    for file in $RUN/seed/*; do
        cmp -s "$file" "$RUN/mounted/${file##*/}" || return 1
    done
}

fill_seed() {
    mkdir -p $RUN/mounted
    for module in vfat nls_cp437 nls_ascii nls_utf8; do modprobe -q $module; done
    mkdosfs -n CIDATA "$device" >$RUN/mkdosfs.said 2>&1 || { fail "making the seed's file system on $device failed: $(last_line $RUN/mkdosfs.said)"; return 1; }
    mounted rw || return 1
    cp $RUN/seed/* $RUN/mounted/ 2>$RUN/copy.error || { fail "writing the seed failed: $(last_line $RUN/copy.error)"; return 1; }
    umount $RUN/mounted || { fail "writing the seed failed: $device stays busy"; return 1; }
    sync
    blockdev --flushbufs "$device"
    echo 3 >/proc/sys/vm/drop_caches
    mounted ro || return 1
    same_files || { umount $RUN/mounted; fail "the seed on $device does not hold what was written$(kernel_errors "$disk")"; return 1; }
    umount $RUN/mounted
}

place_seed() {
    add_partition && seed_device && fill_seed || return 1
    say "seed: on $device, label CIDATA"
}
