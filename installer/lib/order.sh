# What the server wants done: lines of KEY='VALUE', quoted as for a shell but never run as one.

get_order() {
    call "$url/api/v1/boot/order" $RUN/order
}

# unquoted VALUE: without the quotes around it, and with '\'' as the quote that it stands for
unquoted() {
    rest=${1#\'}
    rest=${rest%\'}
    text=
    while :; do
        case $rest in
            *"'\\''"*)
                text="$text${rest%%"'\\''"*}'"
                rest=${rest#*"'\\''"}
                ;;
            *) break ;;
        esac
    done
    printf '%s' "$text$rest"
}

read_order() {
    order_task= order_node= order_attempt= order_image_url= order_image_sha256= order_image_bytes= order_image_format=
    order_image_raw_bytes= order_disk= order_disk_serial= order_seed=no order_reboot=disk
    while IFS= read -r line || [ -n "$line" ]; do
        value=$(unquoted "${line#*=}")
        case $line in
            task=*) order_task=$value ;;
            node=*) order_node=$value ;;
            attempt=*) order_attempt=$value ;;
            image_url=*) order_image_url=$value ;;
            image_sha256=*) order_image_sha256=$value ;;
            image_bytes=*) order_image_bytes=$value ;;
            image_format=*) order_image_format=$value ;;
            image_raw_bytes=*) order_image_raw_bytes=$value ;;
            disk=*) order_disk=$value ;;
            disk_serial=*) order_disk_serial=$value ;;
            seed=*) order_seed=$value ;;
            reboot=*) order_reboot=$value ;;
        esac
    done <$RUN/order
}

ask_order() {
    persist get_order || { fail "the server does not say what to do: $http_error"; return 1; }
    read_order
    say "order of $order_node, attempt ${order_attempt:-1}: $order_task"
}
