# Tells how a command goes, with one page of what it printed. Set before: key, offset, page (bytes), lines.
find_lock || { say never; exit 0; }
was='' pid='' begun='' d=''
read -r was pid begun d <"$lock"
[ "$was" != - ] || { say never; exit 0; }
told() { [ -r "$d/exit" ] && read -r status <"$d/exit" && state_now="exited $status"; }
# its end is looked for before its output: so all of that is there once it has ended
if told; then :; elif [ "$was" != "$boot" ]; then
    state_now=rebooted
elif leads; then
    state_now=running
elif told; then :; else
    state_now=lost
fi
tail -c "+$((offset + 1))" "$d/index" 2>/dev/null | head -n "$lines" | {
    records='' taken=0 out_from=0 out=0 err_from=0 err=0
    while [ "$((out + err))" -lt "$page" ] && read -r line; do
        set -- $line
        case $1 in
            out) [ "$2" = cut ] || { [ "$out" -gt 0 ] || out_from=$2; out=$((out + $3)); } ;;
            err) [ "$2" = cut ] || { [ "$err" -gt 0 ] || err_from=$2; err=$((err + $3)); } ;;
        esac
        taken=$((taken + ${#line} + 1))
        records="$records$line
"
    done
    size=$(wc -c 2>/dev/null <"$d/index")
    size=$((${size:-0}))
    more=no
    [ "$size" -le "$((offset + taken))" ] || more=yes
    say "$state_now"
    printf '%s %s %s %s\n%s' "$taken" "$out" "$err" "$more" "$records"
    [ "$out" = 0 ] || tail -c "+$((out_from + 1))" "$d/out" | head -c "$out"
    [ "$err" = 0 ] || tail -c "+$((err_from + 1))" "$d/err" | head -c "$err"
}
