# Starts a command under its key, once. Set before: key, body (the command as a script), script (a script of the
# caller's, or empty), record (record.sh), max, most, and the function feed (prints what the command reads).
existing() {
    was=
    read -r was pid begun d <"$lock"
    if [ "$was" = - ]; then say cancelled; else say again; fi
    exit 0
}
for tool in setsid mkfifo mktemp dd wc ln tail head; do
    command -v "$tool" >/dev/null || no missing "$tool"
done
# a printf that is no part of the shell would show what it prints in the process list
case $(command -v printf) in */*) no missing "a shell with printf" ;; esac
find_lock && existing
find_base || no storage "neither $first nor $second can be written to"
# what has ended more than a week ago is removed, some of it at each start
find "$base" -maxdepth 1 -name 'run.*' -mtime +7 2>/dev/null | head -n 100 | while read -r old; do
    was='' name=''
    { read -r was pid begun d <"$old/leader" && read -r name <"$old/lock"; } 2>/dev/null
    leads && continue
    case $name in "$base"/*.lock) rm -f "$name" ;; esac
    rm -rf "$old"
done
find "$base" -maxdepth 1 -name '*.lock' -mtime +7 2>/dev/null | head -n 100 | while read -r old; do
    was='' d=''
    { read -r was pid begun d <"$old"; } 2>/dev/null
    [ -d "$d" ] || rm -f "$old"
done
d=$(mktemp -d "$base/run.XXXXXX") || no storage "no folder can be made in $base"
printf '%s\n' "$body" >"$d/command" || { rm -rf "$d"; no storage "$base is full"; }
if [ -n "$script" ]; then
    { printf '%s' "$script" >"$d/script" && chmod 700 "$d/script"; } || { rm -rf "$d"; no storage "$base is full"; }
fi
answer=$({ feed 2>/dev/null | setsid sh -c "$record" millwright-exec "$d" "$base/$key.lock" "$mask" "$max" "$most" 2>/dev/null & })
case $answer in
    started) say started ;;
    *)
        find_lock && existing
        rm -rf "$d"
        no storage "the recording in $base could not be begun; is the disk full?"
        ;;
esac
