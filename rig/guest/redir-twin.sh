# An importer with two serial adapters: it shares one, lends it to a virtual machine, swaps it for the other one, and back.
# The devices have the serial numbers rig-first and rig-second.
named() {
  for folder in /sys/bus/usb/devices/*-*; do
    [ "$(cat "$folder/serial" 2>/dev/null)" = "rig-$1" ] && echo "$folder"
  done | grep .
}
driver_of() { basename "$(readlink "$1/$(basename "$1"):1.0/driver")"; }
has_driver() { [ "$(driver_of "$1")" = "$2" ]; }
wait_for 20 named first || fail "this machine has no device first"
wait_for 20 named second || fail "this machine has no device second"
first=$(named first) && second=$(named second)
for device in "$first" "$second"; do wait_for 20 has_driver "$device" ftdi_sio || fail "$device has no driver"; done
farbus share usb:serial=rig-first --listen 127.0.0.1:3240 >/run/share.log 2>&1 &
share_pid=$!
wait_for 30 grep -q "listening on" /run/share.log || fail "farbus share: $(cat /run/share.log)"
lent=127.0.0.1:3240/1-1
farbus attach $lent --via redir --listen 0.0.0.0:4000 --grace 30 >/run/attach.log 2>&1 &
attach_pid=$!
wait_for 30 grep -q "attached at" /run/attach.log || fail "farbus attach"
say lent
await swap
farbus swap $lent --to usb:serial=rig-second || fail "farbus swap to the twin"
has_driver "$second" usbfs || fail "the twin has the driver $(driver_of "$second")"
farbus status | tee /run/status
grep -q "its twin usb:$(basename "$second") has its place" /run/status || fail "the status does not say what has its place"
say swapped
await back
farbus swap $lent --to $lent || fail "farbus swap back"
wait_for 10 has_driver "$second" ftdi_sio || fail "the twin was not given back: $(driver_of "$second")"
say restored
# Unplugged, the twin takes the lent device along.
await again
farbus swap $lent --to usb:serial=rig-second || fail "farbus swap to the twin again"
say unplug
wait "$attach_pid"
status=$?
[ $status = 4 ] || fail "farbus attach ended with $status"
kill -INT $share_pid
wait $share_pid || fail "farbus share ended with $?: $(cat /run/share.log)"
wait_for 10 has_driver "$first" ftdi_sio || fail "the first was not given back: $(driver_of "$first")"
say ended
