# Restarts the importer's daemon during writes and reads, each time as the program that is installed then; no user of the disk notices.
# The script before this one provides two daemons and the disk.
mount_disk "${DEVICE:-1-1}"
if [ -n "$DRIVER" ]; then
  driver=$(basename "$(readlink "$(usb_interface_of "$dev")/driver")")
  [ "$driver" = "$DRIVER" ] || fail "driver is $driver"
fi
# The port in use, without the number of a descriptor of a process that has ended.
port() { awk '$3 == 6 { print $1, $2, $4, $5, $7 }' /sys/devices/platform/vhci_hcd.0/status*; }
plugged=$(port)
[ -n "$plugged" ] || fail "no port is in use: $(cat /sys/devices/platform/vhci_hcd.0/status)"
daemon=$attach_pid
under_load $((3 * TIMES)) restart desk '"kept":\["'
# A new process that does not come up changes nothing. A signal asks for a restart, too.
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
