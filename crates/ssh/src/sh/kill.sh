# Ends everything in the session of a command, and says so only when nothing of it is left. What was never started
# is marked, so that a start which is still on its way does not come after this. Set before: key.
if ! find_lock; then
    find_base || { say never; exit 0; }
    mark=$(mktemp "$base/mark.XXXXXX") || no storage "no file can be made in $base"
    echo '- - - -' >"$mark"
    if ln "$mark" "$base/$key.lock" 2>/dev/null; then rm -f "$mark"; say never; exit 0; fi
    rm -f "$mark"
    find_lock || no storage "no file can be made in $base"
fi
was='' pid='' begun='' d='' keepers=''
read -r was pid begun d <"$lock"
[ "$was" = "$boot" ] || { say gone; exit 0; }
# another process under the leader's number: the kernel gives it away only when the whole session is gone
if look "$pid" && [ "$since" != "$begun" ]; then say gone; exit 0; fi
# "all": everyone in the session; "others": all but the recorder and what works for it
members() {
    found=
    read -r keepers <"$d/keepers"
    for one in /proc/[0-9]*; do
        one=${one#/proc/}
        look "$one" || continue
        [ "$session" = "$pid" ] && [ "$state" != Z ] && [ "$state" != X ] || continue
        if [ "$1" = others ]; then
            case " $pid $keepers " in *" $one "*) continue ;; esac
            case " $keepers " in *" $parent "*) continue ;; esac
        fi
        found="$found $one"
    done 2>/dev/null
    [ -n "$found" ]
}
strike() { for one in $found; do kill "-$1" "$one" 2>/dev/null; done; }
members all || { say gone; exit 0; }
strike TERM
tries=0
while [ "$tries" -lt 25 ] && members all; do nap; tries=$((tries + 1)); done
tries=0
while [ "$tries" -lt 15 ] && members all; do
    if members others; then strike KILL; fi
    nap
    tries=$((tries + 1))
done
tries=0
while [ "$tries" -lt 15 ] && members all; do strike KILL; nap; tries=$((tries + 1)); done
members all && no stuck "these processes do not end:$found"
say killed
