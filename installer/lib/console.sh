# What people are told, on the consoles and in the reports' log.

# say TEXT: a line on every console, kept for the next report. Whatever cannot be shown on a screen is left out.
say() {
    line=$(printf '%s' "$1" | tr '\000-\037\177' ' ' | cut -c 1-500)
    for console in $(cat /sys/class/tty/console/active); do
        printf 'millwright: %s\r\n' "$line" >"/dev/$console"
    done
    printf '%s\n' "$line" >>$RUN/log
}

# fail TEXT: the cause; to be followed by a return to whoever asked
fail() {
    failure=$1
    return 1
}

# last_line FILE: what a program said at its end, without its own name before it, nor dd's counts
last_line() {
    grep -v -e '^ *$' -e ' records in$' -e ' records out$' "$1" 2>/dev/null | tail -n 1 | sed 's/^[a-z0-9]*: //'
}
