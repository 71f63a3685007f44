# The importer's daemon is restarted in the middle of writing and reading, each time as the program that is there now; nobody above
# hears of it. What comes before this script has two daemons and the disk.
mount_disk "${DEVICE:-1-1}"
if [ -n "$DRIVER" ]; then
  driver=$(basename "$(readlink "$(usb_interface_of "$dev")/driver")")
  [ "$driver" = "$DRIVER" ] || fail "driver is $driver"
fi
# The port in use, but for the number of a descriptor in a process that is gone.
port() { awk '$3 == 6 { print $1, $2, $4, $5, $7 }' /sys/devices/platform/vhci_hcd.0/status*; }
plugged=$(port)
[ -n "$plugged" ] || fail "no port is in use: $(cat /sys/devices/platform/vhci_hcd.0/status)"
daemon=$attach_pid
under_load $((3 * TIMES)) restart desk '"kept":\["'
# One that does not come up changes nothing, and asking by signal is asking as well.
kill -USR2 "$daemon" || fail "signal"
gone() { ! grep -q farbus "/proc/$daemon/cmdline" 2>/dev/null; }
wait_for 20 gone || fail "a signal restarts nothing: $(cat /run/attach.log)"
restarts=$((restarts + 1))
(cd /mnt/guest-1 && sha256sum -c MANIFEST >/run/check 2>&1) || fail "after a signal: $(grep -v OK /run/check | head -n 5)"
heard_nothing vhci
[ "$(port)" = "$plugged" ] || fail "the port is another one: $(port), not $plugged"
grep -E '^CapEff:\s*0+$' /proc/"$(as desk status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)"/status ||
  fail "it has capabilities"
said
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
