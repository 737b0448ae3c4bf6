# Asks the system to reboot. "going" is said before, since there may be no time to say more.
as_root() { if [ "$uid" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
PATH=$PATH:/usr/sbin:/sbin
if [ -d /run/systemd/system ] && command -v systemctl >/dev/null; then set -- systemctl reboot
elif command -v reboot >/dev/null; then set -- reboot
elif command -v shutdown >/dev/null; then set -- shutdown -r now
else no missing "systemctl, reboot or shutdown"; fi
say going
# so that this is heard; some systems are gone at once
sleep 1
why=$(as_root "$@" </dev/null 2>&1 >/dev/null) || say "no failed $*: $(printf '%s' "$why" | head -n 1)"
