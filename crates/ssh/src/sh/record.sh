# Leads the session of one command and records it. Arguments: the folder, the lock, the umask, and how many bytes
# and pieces are kept of each stream. On standard input: what the command reads. Says "started" or "again".
d=$1 lock=$2 mask=$3 max=$4 most=$5
umask 077
# a handler, not ignored: children would inherit that
trap : TERM INT HUP
boot=
read -r boot </proc/sys/kernel/random/boot_id || exit 1
line=
read -r line </proc/$$/stat || exit 1
set -- ${line##*)}
begun=${20}
# Everything that can fail is done before the lock is taken.
mkfifo "$d/out.pipe" "$d/err.pipe" && : >"$d/out" && : >"$d/err" && : >"$d/index" &&
    printf '%s\n' "$lock" >"$d/lock" &&
    printf '%s %s %s %s\n' "$boot" "$$" "$begun" "$d" >"$d/leader" || exit 1
if ! ln "$d/leader" "$lock" 2>/dev/null; then
    rm -rf "$d"
    echo again
    exit 0
fi
# after a power cut it must be known that this was started
sync "$d/leader" "$d" "${lock%/*}" 2>/dev/null
echo started
exec >/dev/null 2>&1 3<&0 </dev/null
# Reads one stream piece by piece as it comes: the piece goes into a file of its own, then one line into the index,
# in the order of both streams. Deaf to TERM, so that the last words of what is killed are kept.
keep() {
    trap '' TERM INT HUP
    size=0 pieces=0
    while [ "$size" -lt "$max" ] && [ "$pieces" -lt "$most" ]; do
        before=$size
        dd bs=65536 count=1 2>/dev/null >>"$d/$1"
        failed=$?
        size=$(($(wc -c <"$d/$1")))
        if [ "$size" -gt "$before" ]; then
            printf '%s %s %s\n' "$1" "$before" "$((size - before))" >>"$d/index" || break
            pieces=$((pieces + 1))
        fi
        [ "$failed" = 0 ] || break
        if [ "$size" = "$before" ]; then
            : >"$d/$1.end"
            return 0
        fi
        # who prints much and long is read in larger pieces
        if [ "$pieces" -gt 65536 ]; then sleep 1; elif [ "$pieces" -gt 4096 ]; then sleep 0.1 || sleep 1; fi
    done
    printf '%s cut %s\n' "$1" "$size" >>"$d/index"
    : >"$d/$1.end"
    exec cat >/dev/null
}
keep out <"$d/out.pipe" 3<&- &
printf '%s ' "$!" >"$d/keepers"
keep err <"$d/err.pipe" 3<&- &
printf '%s ' "$!" >>"$d/keepers"
(
    umask "$mask"
    exec sh "$d/command"
) <&3 3<&- >"$d/out.pipe" 2>"$d/err.pipe" &
main=$!
exec 3<&-
while :; do
    wait "$main"
    status=$?
    # interrupted by a signal of ours it goes on waiting; a process that was waited for is gone
    kill -0 "$main" 2>/dev/null || break
done
# All it printed comes before its end. What it left behind may hold its output open for ever: then until it is quiet.
quiet=0 seen=
while [ "$quiet" -lt 20 ] && ! { [ -e "$d/out.end" ] && [ -e "$d/err.end" ]; }; do
    now=$(wc -c <"$d/index")
    if [ "$now" = "$seen" ]; then quiet=$((quiet + 1)); else quiet=0 seen=$now; fi
    sleep 0.1 || sleep 1
done
rm -f "$d/command" "$d/script" "$d/out.pipe" "$d/err.pipe"
printf '%s\n' "$status" >"$d/exit.new" && mv "$d/exit.new" "$d/exit"
