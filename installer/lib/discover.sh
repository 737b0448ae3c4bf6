# What this machine is: facts for the inventory. Nothing is written anywhere.

dmi() {
    cat "/sys/class/dmi/id/$1" 2>/dev/null
}

# member NAME TEXT: with a comma before it, none if there is no text
member() {
    [ -z "$2" ] || printf ',"%s":%s' "$1" "$(json_string "$2")"
}

# listed: its input's lines, with commas between
listed() {
    paste -s -d , -
}

disk_facts() {
    for name in $(disks); do
        rotational=false
        [ "$(cat "/sys/block/$name/queue/rotational")" = 0 ] || rotational=true
        printf '{"name":"%s","bytes":%s,"rotational":%s%s%s,"ids":[%s]}\n' "$name" "$(disk_bytes "$name")" $rotational \
            "$(member model "$(disk_model "$name")")" "$(member serial "$(disk_serial "$name")")" "$(disk_ids "$name" | json_lines)"
    done | listed
}

card_facts() {
    for name in $(cards); do
        link=false
        [ "$(cat "/sys/class/net/$name/carrier" 2>/dev/null)" != 1 ] || link=true
        printf '{"name":"%s","mac":"%s","link":%s,"driver":"%s"}\n' "$name" "$(card_mac "$name")" $link \
            "$(basename "$(readlink -f "/sys/class/net/$name/device/driver")")"
    done | listed
}

# display controllers, 3D controllers among them, and processing accelerators
gpu_facts() {
    for device in /sys/bus/pci/devices/*; do
        class=$(cat "$device/class")
        case $class in
            0x03* | 0x12*)
                printf '{"address":"%s","class":"%s","vendor":"%s","device":"%s"}\n' "${device##*/}" "$class" \
                    "$(cat "$device/vendor")" "$(cat "$device/device")"
                ;;
        esac
    done | listed
}

facts() {
    printf '{"cpus":%s,"memory_bytes":%s' "$(grep -c ^processor /proc/cpuinfo)" \
        "$(($(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) * 1024))"
    member cpu_model "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)"
    for pair in vendor:sys_vendor product:product_name serial:product_serial uuid:product_uuid board_serial:board_serial \
        chassis_serial:chassis_serial asset_tag:chassis_asset_tag bios_version:bios_version; do
        member "${pair%%:*}" "$(dmi "${pair#*:}")"
    done
    firmware=bios
    [ ! -d /sys/firmware/efi ] || firmware=uefi
    printf ',"firmware":"%s","disks":[%s],"nics":[%s],"gpus":[%s]}' $firmware "$(disk_facts)" "$(card_facts)" "$(gpu_facts)"
}

# links_up: a card that is down shows no link
links_up() {
    for name in $(cards); do ip link set "$name" up; done
    sleep 3
}

discover() {
    links_up
    settle_disks
    members="\"ip_address\":$(json_string "$address")$(member vendor "$(dmi sys_vendor)")$(member model "$(dmi product_name)")$(
        member serial_number "$(dmi product_serial)")$(member system_uuid "$(dmi product_uuid)"),\"facts\":$(facts)"
    say "reporting what this machine is"
    persist report "" "" "$members" || fail "the server does not take the report: $http_error"
}
