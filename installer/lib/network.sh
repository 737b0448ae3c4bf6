# Drivers for what is there, and an address on the card that booted.

# load_modules: by what the devices call themselves. A loaded driver may show further devices, so again until none come.
load_modules() {
    modprobe -q scsi_mod scan=sync
    echo none >$RUN/aliases
    round=0
    while [ $round -lt 6 ]; do
        find /sys/devices -name modalias -exec cat {} + 2>/dev/null |
            grep -E '^(pci|virtio|scsi|vmbus|acpi|platform):' | sort -u >$RUN/aliases.now
        grep -vxF -f $RUN/aliases $RUN/aliases.now >$RUN/aliases.new || break
        # together: the tables are read once
        xargs modprobe -q -b -a <$RUN/aliases.new 2>/dev/null
        mv $RUN/aliases.now $RUN/aliases
        round=$((round + 1))
    done
}

# cards: the names of the real network cards
cards() {
    for card in /sys/class/net/*; do
        [ -e "$card/device" ] && echo "${card##*/}"
    done
}

card_mac() {
    tr A-F a-f <"/sys/class/net/$1/address"
}

# booted_mac: of the card that booted, as the command line says it; none if it does not
booted_mac() {
    told=$(argument millwright.mac)
    if [ -z "$told" ]; then
        # 01- is the hardware type, Ethernet
        told=$(argument BOOTIF)
        told=${told#01-}
    fi
    echo "$told" | tr A-F- a-f:
}

# find_card: into $card, $mac; by its address, or the first with a link where no address was told
find_card() {
    wanted=$(booted_mac)
    for candidate in $(cards); do
        mac=$(card_mac "$candidate")
        if [ -n "$wanted" ]; then
            [ "$mac" = "$wanted" ] || continue
        else
            ip link set "$candidate" up
            [ "$(cat "/sys/class/net/$candidate/carrier" 2>/dev/null)" = 1 ] || continue
        fi
        card=$candidate
        return 0
    done
    return 1
}

network_up() {
    ip link set lo up
    waited=0
    until find_card; do
        waited=$((waited + 1))
        if [ $waited -ge 150 ]; then
            seen=
            for candidate in $(cards); do seen="$seen $candidate=$(card_mac "$candidate")"; done
            which="with a link"
            [ -z "$wanted" ] || which="with the address $wanted, which booted"
            fail "there is no network card $which; there are:${seen:- none}"
            return 1
        fi
        sleep 0.2
    done
    ip link set "$card" up
    say "network card $card ($mac)"
    try=0
    # stays and renews the lease
    until udhcpc -i "$card" -n -t 5 -T 3 -s /lib/millwright/udhcpc >$RUN/udhcpc.log 2>&1; do
        try=$((try + 1))
        if [ $try -ge 6 ]; then
            fail "no address by DHCP on $card ($mac): $(last_line $RUN/udhcpc.log)"
            return 1
        fi
        say "no address by DHCP on $card yet; trying again"
    done
    address=$(cat $RUN/address)
    say "address $address"
}
