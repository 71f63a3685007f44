# The processes that read from the other host have no rights left.
as desk daemon reload || fail "reload"
wait_for 20 has_disk || fail "a reload does not take it again"
for pid in $share_pid $attach_pid; do
  grep -E '^CapEff:\s*0+$' "/proc/$pid/status" || fail "it has capabilities: $(grep Cap "/proc/$pid/status")"
  grep -E '^Seccomp:\s*2$' "/proc/$pid/status" || fail "its system calls are not filtered"
done
as desk list || fail "list"
as lab3 status --json | grep -q '"reason": *"the rig"' || fail "nobody was told the reason: $(as lab3 status --json)"

# After a kill, nothing has to be cleaned up by hand on either host.
kill -KILL "$share_pid"
died=$(uptime_now)
has_driver() { [ "$(basename "$(readlink "/sys/bus/usb/devices/$shared:1.0/driver")")" = usb-storage ]; }
wait_for 10 has_driver || fail "the stick's driver does not have it again: $(cat /run/share.log)"
echo "note: the stick's driver has it again $(elapsed "$died" "$(uptime_now)") s after a kill"
# Only after the grace period of its session.
wait_for 60 no_port_in_use || fail "its importer still has it"
kill -TERM "$attach_pid"
wait "$attach_pid" || fail "the importer's daemon ended with $?: $(cat /run/attach.log)"
[ -z "$(ls /run/lab3/run/farbus /run/desk/run/farbus 2>/dev/null | grep sock)" ] || fail "a socket is left"
