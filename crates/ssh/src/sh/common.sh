# What the scripts share. Set before: key.
# A recording of key K is two things in a folder that only its owner can enter: K.lock, one line that says
# which boot, which session leader (its pid and when it began) and which folder; and that folder, run.XXXXXX.
# K.lock is a hard link, made whole or not at all: whoever makes it is the one who starts the command.
mask=$(umask)
umask 077
PATH=${PATH:-/usr/bin:/bin}
say() { printf '\nmillwright-answer %s\n' "$*"; }
no() { say "no $*"; exit 0; }
boot=
read -r boot </proc/sys/kernel/random/boot_id || no bad "it has no boot id in /proc: only Linux is supported"
uid=$(id -u)
if [ "$uid" = 0 ]; then first=/var/lib/millwright; else first=${HOME:-/nonexistent}/.millwright; fi
second=/tmp/millwright-$uid
# only a folder of our own is believed: /tmp is everybody's
ours() { [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]; }
find_lock() {
    lock=
    for place in "$first" "$second"; do
        if ours "$place" && [ -e "$place/exec/$key.lock" ]; then lock=$place/exec/$key.lock; return 0; fi
    done
    return 1
}
find_base() {
    base=
    for place in "$first" "$second"; do
        if mkdir -p "$place/exec" 2>/dev/null && ours "$place" && [ -w "$place/exec" ]; then
            base=$place/exec; return 0
        fi
    done
    return 1
}
# Of a process: its state, parent, session and when it began. Its name, in brackets, may hold anything.
look() {
    state='' parent='' session='' since='' line=''
    { read -r line </proc/"$1"/stat; } 2>/dev/null || return 1
    set -- "$1" ${line##*)}
    if [ $# -lt 21 ]; then
        line=$(cat /proc/"$1"/stat 2>/dev/null) || return 1
        set -- "$1" ${line##*)}
        [ $# -ge 21 ] || return 1
    fi
    state=$2 parent=$3 session=$5 since=${21}
}
# Whether the session leader of a lock still runs: the same process, not another under its number.
leads() {
    [ "$was" = "$boot" ] && look "$pid" && [ "$since" = "$begun" ] && [ "$state" != Z ] && [ "$state" != X ]
}
nap() { sleep 0.2 2>/dev/null || sleep 1; }
