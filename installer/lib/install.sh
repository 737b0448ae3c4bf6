# The install: an image streamed to a disk, hashed on the way, read back from the disk, a seed placed behind it.
#
#   download (stream.sh) -> tee -> sha256sum        what came over the network, against the order's digest
#                            |
#                            +-> gunzip -> tee -> sha256sum      what is written, against what is read back
#                                           |
#                                           +-> dd to the disk
#
# Of a raw image both digests are the same, and it is hashed once.

# how long, in seconds, nothing may come before the connection is given up and taken up again
STALL=60

check_order() {
    case $order_image_url in
        http://?*) ;;
        *) fail "the order's image has no http address: '$order_image_url'"; return 1 ;;
    esac
    case $order_image_sha256 in *[!0-9a-f]*) bad=yes ;; *) bad=no ;; esac
    if [ $bad = yes ] || [ ${#order_image_sha256} != 64 ]; then
        fail "the order's image has no SHA-256 digest: '$order_image_sha256'"
        return 1
    fi
    case $order_image_bytes in
        '' | *[!0-9]*) fail "the order's image has no size: '$order_image_bytes'"; return 1 ;;
    esac
    case $order_image_format in
        raw | raw.gz) ;;
        *) fail "the order's image is '$order_image_format', which this installer cannot write"; return 1 ;;
    esac
}

# learn_size: of an image from elsewhere the order says no size; its server does
learn_size() {
    [ "$order_image_bytes" = 0 ] || return 0
    size_of "$order_image_url" || return 1
    order_image_bytes=$size
    say "the image has $size bytes, as its server says"
}

# image_needs: how many bytes the image has on the disk. A packed one says at its end how many there are, modulo 4 GiB:
# never too many, so what does not fit by that does not fit. The server may know better (image_raw_bytes).
image_needs() {
    if [ "$order_image_format" = raw ]; then
        echo "$order_image_bytes"
        return
    fi
    if [ "$(number "$order_image_raw_bytes" 0)" != 0 ]; then
        echo "$order_image_raw_bytes"
        return
    fi
    little_endian "$(stretch "$order_image_url" $((order_image_bytes - 4)) 4 | xxd -p)"
}

# start_meter NAME: a digest and a count of what passes by, in $RUN/NAME.sha256 and $RUN/NAME.count
start_meter() {
    rm -f "$RUN/$1".*
    mkfifo "$RUN/$1.fifo" "$RUN/$1.fifo2"
    sha256sum <"$RUN/$1.fifo" >"$RUN/$1.sha256" &
    wc -c <"$RUN/$1.fifo2" >"$RUN/$1.count" &
}

# meter NAME: passes its input on, by the meter of that name
meter() {
    sh -c 'echo $$ >"$1/$2.pid"; exec tee "$1/$2.fifo" "$1/$2.fifo2"' tee $RUN "$1"
}

unpack() {
    if ! gunzip -c 2>$RUN/unpack.error; then echo failed >>$RUN/unpack.error; fi
}

# write_disk: its input to the disk. How it ended is in $RUN/writer.status, what it said in $RUN/writer.said.
write_disk() {
    sh -c 'echo $$ >"$1/writer.pid"; exec dd of="/dev/$2" bs=1M iflag=fullblock conv=notrunc,fsync 2>"$1/writer.said"' dd $RUN "$disk"
    echo $? >$RUN/writer.status
}

start_writing() {
    rm -f $RUN/writer.* $RUN/unpack.error $RUN/download.end $RUN/give_up
    start_meter downloaded
    if [ "$order_image_format" = raw.gz ]; then
        start_meter written
        download "$order_image_url" "$order_image_bytes" | meter downloaded | unpack | meter written | write_disk &
    else
        download "$order_image_url" "$order_image_bytes" | meter downloaded | write_disk &
    fi
}

# kill_by NAME: the process whose number is in $RUN/NAME.pid, and not another that has its number now
kill_by() {
    victim=$(cat "$RUN/$1.pid" 2>/dev/null)
    [ -z "$victim" ] || kill -9 "$victim" 2>/dev/null
}

# stop_writing: first of all nothing more for the disk; then the rest
stop_writing() {
    : >$RUN/give_up
    kill_by writer
    kill_by connection
    kill_by downloaded
    kill_by written
}

# percent DONE OF FROM TO: where that is on the way between the two
percent() {
    echo $(($3 + ($1 < $2 ? $1 : $2) * ($4 - $3) / ($2 > 0 ? $2 : 1)))
}

# have_read NAME: how many bytes that process has read until now
have_read() {
    sed -n 's/^rchar: //p' "/proc/$(cat "$RUN/$1.pid" 2>/dev/null)/io" 2>/dev/null
}

# due: whether it is time for another report; about every two seconds
due() {
    now=$(cut -d . -f 1 /proc/uptime)
    [ $now -ge $((${told_at:-0} + 2)) ] || return 1
    told_at=$now
}

# watch_writing: reports until the writer has ended. Gives a silent connection up, so that it is taken up again.
watch_writing() {
    came=0 came_at=$(cut -d . -f 1 /proc/uptime) shown=-10
    while [ ! -s $RUN/writer.status ]; do
        sleep 0.5
        due || continue
        count=$(number "$(have_read downloaded)" $came)
        [ "$count" = $came ] || came_at=$told_at
        came=$count
        if [ $((told_at - came_at)) -ge $STALL ] && [ $came -lt "$order_image_bytes" ]; then
            say "no bytes for $STALL seconds"
            kill_by connection
            came_at=$told_at
        fi
        done_now=$(percent $came "$order_image_bytes" 1 70)
        if [ $done_now -ge $((shown + 10)) ]; then
            say "writing: $came of $order_image_bytes bytes"
            shown=$done_now
        fi
        progress $done_now || { stop_writing; return 1; }
    done
}

# reading NAME KIND: of a meter, once it is there: its process ends after the writer's
reading() {
    waited=0
    until [ -s "$RUN/$1.$2" ] || [ $waited -ge 300 ]; do
        sleep 0.1
        waited=$((waited + 1))
    done
    cut -d ' ' -f 1 "$RUN/$1.$2"
}

# check_writing: what went wrong, the first cause first
check_writing() {
    if [ "$(cat $RUN/writer.status)" != 0 ]; then
        stop_writing
        said=$(last_line $RUN/writer.said)
        case $said in *'No space left'*) said="disk too small: $said" ;; esac
        fail "writing to $disk failed: $said$(kernel_errors "$disk")"
        return 1
    fi
    ended=$(cat $RUN/download.end 2>/dev/null)
    if [ "$ended" != done ]; then
        fail "the image did not come: ${ended:-the stream ended}"
        return 1
    fi
    came=$(reading downloaded sha256)
    if [ "$came" != "$order_image_sha256" ]; then
        fail "wrong digest: the image that came has SHA-256 $came, ordered is $order_image_sha256"
        return 1
    fi
    if [ -s $RUN/unpack.error ]; then
        fail "the image cannot be unpacked: $(head -n 1 $RUN/unpack.error)"
        return 1
    fi
    last=downloaded
    [ "$order_image_format" = raw ] || last=written
    written=$(reading $last sha256) written_bytes=$(reading $last count)
    say "written: $written_bytes bytes, SHA-256 $written"
}

# read_disk BYTES: the disk's first bytes, past every cache of this system
read_disk() {
    sector=$(cat "/sys/block/$disk/queue/logical_block_size")
    whole=$(($1 >> 20)) rest=$(($1 & 1048575))
    dd if="/dev/$disk" bs=1M count=$whole iflag=direct
    [ $rest = 0 ] || dd if="/dev/$disk" bs="$sector" skip=$(((whole << 20) / sector)) count=$(((rest + sector - 1) / sector)) \
        iflag=direct | head -c $rest
}

# read_back: hashes what the disk holds now, against what was written
read_back() {
    sync
    blockdev --flushbufs "/dev/$disk"
    echo 3 >/proc/sys/vm/drop_caches
    rm -f $RUN/read.*
    # counted by the hash's process: its end is that of the whole
    read_disk "$written_bytes" 2>$RUN/read.error | sh -c 'echo $$ >"$1/read.pid"; exec sha256sum' sha256sum $RUN >$RUN/read.sha256 &
    while [ ! -s $RUN/read.sha256 ]; do
        sleep 0.5
        due || continue
        count=$(number "$(have_read read)" "$written_bytes")
        progress "$(percent "$count" "$written_bytes" 70 97)" || return 1
    done
    found=$(reading read sha256)
    if [ "$found" != "$written" ]; then
        fail "the disk $disk does not hold what was written: read back SHA-256 $found, written $written; $(last_line $RUN/read.error)$(kernel_errors "$disk")"
        return 1
    fi
    say "read back: the same"
}

# wipe_end: whatever marks a disk at its end (RAID, an old backup table) and is not part of the image
wipe_end() {
    bytes=$(disk_bytes "$disk")
    from=$((bytes - 1048576))
    [ $from -ge "$written_bytes" ] || from=$written_bytes
    sector=$(cat "/sys/block/$disk/queue/logical_block_size")
    from=$(((from + sector - 1) / sector))
    dd if=/dev/zero of="/dev/$disk" bs="$sector" seek=$from count=$((bytes / sector - from)) conv=notrunc,fsync 2>$RUN/wipe.error ||
        fail "writing to the end of $disk failed: $(last_line $RUN/wipe.error)$(kernel_errors "$disk")"
}

install_image() {
    report_started || return 1
    check_order || return 1
    learn_size || return 1
    needs=$(image_needs)
    if [ "$order_seed" = yes ]; then
        get_seed || return 1
        needs=$((needs + SEED_ROOM))
    fi
    choose_disk "$needs" || return 1
    start_writing
    watch_writing || return 1
    check_writing || return 1
    read_back || return 1
    wipe_end || return 1
    if [ "$order_seed" = yes ]; then
        progress 97 || return 1
        place_seed || return 1
    fi
    sync
    say "complete"
    report_complete "" installed active
}
