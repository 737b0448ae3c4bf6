# The erasure of whole disks, with evidence: by the device itself where it can (NVMe sanitize or format, ATA security
# erase, secure discard), otherwise by overwriting every sector; and read back by samples, taken before and after.
#
# What a disk hides from its host (remapped sectors, a host protected area) only the device's own way can reach.

SAMPLE=65536
SAMPLES=16
RANGE=$((1 << 30))
# a device's own erasure may take hours
DEVICE_SECONDS=43200

# sample_offsets NAME: the beginning, the end, and chance in between
sample_offsets() {
    blocks=$((($(disk_bytes "$1") + SAMPLE - 1) / SAMPLE))
    {
        echo 0
        echo $((blocks - 1))
        if [ $blocks -le $SAMPLES ]; then
            seq 0 $((blocks - 1))
        else
            for number in $(od -An -v -tu4 -N $((4 * (SAMPLES - 2))) /dev/urandom); do echo $((number * 4096 % blocks)); done
        fi
    } | sort -n | uniq | while read -r block; do echo $((block * SAMPLE)); done
}

# take_samples NAME: for every offset of $RUN/offsets a line: its digest, its bytes, whether it is all zeros
take_samples() {
    echo 3 >/proc/sys/vm/drop_caches
    while read -r offset; do
        if ! dd if="/dev/$1" of=$RUN/sample bs=$SAMPLE skip=$((offset / SAMPLE)) count=1 iflag=direct 2>$RUN/sample.error; then
            echo "unreadable 0 false"
            continue
        fi
        zero=false
        [ "$(tr -d '\000' <$RUN/sample | wc -c)" != 0 ] || zero=true
        echo "$(sha256sum <$RUN/sample | cut -d ' ' -f 1) $(wc -c <$RUN/sample) $zero"
    done <$RUN/offsets
}

# while_running PID: reports until it has ended, or has taken too long. Of an overwriting, how far it is; a device does
# not say.
while_running() {
    begun=$(cut -d . -f 1 /proc/uptime)
    while kill -0 "$1" 2>/dev/null; do
        sleep 0.5
        due || continue
        if [ "$overwriting" = yes ]; then
            # once it has ended, it is where it was seen last
            reached=$(number "$(sed -n 's/^pos:[^0-9]*//p' "/proc/$(cat $RUN/eraser.pid 2>/dev/null)/fdinfo/1" 2>/dev/null)" "$reached")
        elif [ $((told_at - begun)) -ge $DEVICE_SECONDS ]; then
            echo "not done within $DEVICE_SECONDS seconds" >>$RUN/device.said
            kill -9 "$1" 2>/dev/null
        fi
        progress "$(percent $((erased_bytes + reached)) "$all_bytes" 1 99)" || { kill -9 "$1" 2>/dev/null; return 1; }
    done
}

# device_way METHOD COMMAND...: lets the device do it, and notes the result
device_way() {
    way=$1
    shift
    say "$name: $way"
    "$@" </dev/null >$RUN/device.said 2>&1 &
    worker=$!
    overwriting=no
    while_running $worker || return 1
    if wait $worker; then result=ok; else result=$(last_line $RUN/device.said); fi
    note_way "$way" "${result:-failed without a word}"
    [ "$result" = ok ]
}

note_way() {
    say "$name: $1: $2"
    ways="$ways${ways:+,}{\"method\":$(json_string "$1"),\"result\":$(json_string "$2")}"
}

# alone NAME: whether an NVMe controller has no other disk than this one; what it does to itself it does to all
alone() {
    [ "$(ls -d /sys/block/"${1%n*}"n* | wc -l)" = 1 ]
}

# nvme_sanitize: started, and watched until the device says how it ended
nvme_sanitize() {
    nvme sanitize "$1" -a "$2" || return 1
    while :; do
        sleep 5
        state=$(nvme sanitize-log "$1" | sed -n 's/.*(SSTAT)[^0-9]*\(0x[0-9a-f]*\|[0-9]*\).*/\1/p')
        case $((${state:-3} & 7)) in
            1 | 4) return 0 ;;
            2) ;;
            *) echo "the device says that its sanitize ended in state ${state:-unknown}"; return 1 ;;
        esac
    done
}

erase_nvme() {
    if ! alone "$1"; then
        note_way nvme "not used: the controller has other namespaces"
        return 1
    fi
    controller=/dev/${1%n*}
    can=$(nvme id-ctrl "$controller" 2>/dev/null | sed -n 's/^sanicap *: *//p')
    can=$((${can:-0}))
    if [ $((can & 2)) != 0 ] && device_way "nvme sanitize, block erase" nvme_sanitize "$controller" 2; then return 0; fi
    [ $stopped = no ] || return 1
    if [ $((can & 1)) != 0 ] && device_way "nvme sanitize, crypto erase" nvme_sanitize "$controller" 4; then return 0; fi
    [ $stopped = no ] || return 1
    [ $((can & 3)) != 0 ] || note_way "nvme sanitize" "the device has none"
    device_way "nvme format, user data erase" nvme format "/dev/$1" --ses=1 --force
}

# ata_erase DEVICE OPTION: a password of our own, then the erasure, which takes the password away again
ata_erase() {
    hdparm --user-master u --security-set-pass millwright "$1" || return 1
    hdparm --user-master u "$2" millwright "$1" && return 0
    hdparm --user-master u --security-disable millwright "$1"
    return 1
}

erase_ata() {
    about=$(hdparm -I "/dev/$1" 2>/dev/null | sed -n '/^Security:/,/^[A-Z]/p')
    case $about in
        *"not	supported"* | '') note_way "ata security erase" "the device has none"; return 1 ;;
        *"not	frozen"*) ;;
        *) note_way "ata security erase" "the firmware has frozen it"; return 1 ;;
    esac
    case $about in
        *"supported: enhanced erase"*) device_way "ata security erase, enhanced" ata_erase "/dev/$1" --security-erase-enhanced ;;
        *) device_way "ata security erase" ata_erase "/dev/$1" --security-erase ;;
    esac
}

# by_device NAME: whether the device has erased itself; what was tried is in $ways, what did it in $way
by_device() {
    case $1 in
        nvme*) if command -v nvme >/dev/null && erase_nvme "$1"; then return 0; fi ;;
        sd*) if command -v hdparm >/dev/null && erase_ata "$1"; then return 0; fi ;;
    esac
    [ $stopped = no ] || return 1
    device_way "secure discard" blkdiscard -s "/dev/$1"
}

# overwrite NAME: every sector with zeros, range by range; which is in $ranges
overwrite() {
    bytes=$(disk_bytes "$1")
    from=0
    overwriting=yes
    say "$1: overwriting $bytes bytes"
    while [ $from -lt "$bytes" ]; do
        length=$((bytes - from < RANGE ? bytes - from : RANGE))
        reached=$from
        rm -f $RUN/eraser.pid
        head -c $length /dev/zero | sh -c 'echo $$ >"$1/eraser.pid"; exec dd of="/dev/$2" bs=1M iflag=fullblock oflag=seek_bytes seek="$3" conv=notrunc,fsync 2>"$1/eraser.said"' \
            dd $RUN "$1" $from &
        worker=$!
        while_running $worker || { kill_by eraser; return 1; }
        if ! wait $worker; then
            fail "overwriting $1 from byte $from failed: $(last_line $RUN/eraser.said)$(kernel_errors "$1")"
            return 1
        fi
        from=$((from + length))
        ranges="{\"from\":0,\"bytes\":$from}"
    done
}

# judge: pairs the samples of before and after. Overwritten, all must be zeros; by the device, zeros or something else
# than before.
judge() {
    samples= verified=true
    paste -d ' ' $RUN/offsets $RUN/before $RUN/after >$RUN/pairs
    while read -r offset before _ _ after count zero; do
        if [ "$zero" != true ] && { [ "$way" = overwrite ] || [ "$after" = "$before" ] || [ "$after" = unreadable ]; }; then
            verified=false
        fi
        samples="$samples${samples:+,}{\"offset\":$offset,\"bytes\":$count,\"before\":\"$before\",\"after\":\"$after\",\"zero\":$zero}"
    done <$RUN/pairs
    [ $verified = true ]
}

# erase_disk NAME: its evidence is in $proof, whatever comes of it
erase_disk() {
    name=$1 ways= ranges= way= samples= verified=false reached=0
    sample_offsets "$1" >$RUN/offsets
    take_samples "$1" >$RUN/before
    erased=no
    if by_device "$1"; then
        take_samples "$1" >$RUN/after
        if judge; then erased=yes; else note_way "$way" "but samples are as before: overwriting"; fi
    fi
    if [ $erased = no ] && [ $stopped = no ]; then
        way=overwrite
        if overwrite "$1"; then
            take_samples "$1" >$RUN/after
            if judge; then erased=yes; else fail "$1 does not read as zeros after it was overwritten$(kernel_errors "$1")"; fi
        fi
    fi
    proof="{\"disk\":\"$1\",\"model\":$(json_string "$(disk_model "$1")"),\"serial\":$(json_string "$(disk_serial "$1")"),\"bytes\":$(disk_bytes "$1"),\"method\":$(json_string "$way"),\"sanitize\":[$ways],\"ranges\":[$ranges],\"samples\":[$samples],\"verified\":$verified}"
    [ $erased = yes ]
}

erase_disks() {
    report_started || return 1
    settle_disks
    targets=$(named_disks)
    if [ -z "$targets" ]; then
        fail "there is no disk for '${order_disk:-all}'; $(disk_list)"
        return 1
    fi
    all_bytes=0 erased_bytes=0 proofs= causes=
    for target in $targets; do all_bytes=$((all_bytes + $(disk_bytes "$target"))); done
    for target in $targets; do
        # one that fails does not keep the others from being erased
        erase_disk "$target" || causes="$causes${causes:+; }$failure"
        proofs="$proofs${proofs:+,}$proof"
        evidence="{\"disks\":[$proofs]}"
        [ $stopped = no ] || return 1
        erased_bytes=$((erased_bytes + $(disk_bytes "$target")))
    done
    if [ -n "$causes" ]; then
        fail "$causes"
        return 1
    fi
    say "complete: erased $targets"
    report_complete "\"evidence\":$evidence" retired
}
