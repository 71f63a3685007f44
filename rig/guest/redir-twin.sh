# A serial adapter of this machine is shared, lent to a virtual machine, which is this machine itself, swapped there for
# another adapter of this machine, and brought back. The devices have the serial numbers rig-first and rig-second.
named() {
  for folder in /sys/bus/usb/devices/*-*; do
    [ "$(cat "$folder/serial" 2>/dev/null)" = "rig-$1" ] && [ "$folder" != "$2" ] && echo "$folder"
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
await plugged
wait_for 20 named first "$first" || fail "no device came by usbredir"
far=$(named first "$first")
wait_for 20 has_driver "$far" ftdi_sio || fail "the lent device has no driver"
tty() { ls -d "$far"/*:*/ttyUSB* 2>/dev/null | head -n 1 | grep .; }
wait_for 15 tty || fail "no serial port appeared"
port=/dev/$(basename "$(tty)")
wait_for 5 [ -c "$port" ] || fail "no node $port"
stty -F "$port" raw -echo 115200 || fail "stty"
exec 3<>"$port"
cat <&3 >/run/heard &
reader=$!
: >/run/expected
complete() { [ "$(stat -c %s /run/heard)" -ge "$(stat -c %s /run/expected)" ]; }
talk() {
  seq 1 100 | sed "s/^/the $1 brown fox number /" >/run/said
  cat /run/said >&3
  tr a-z A-Z </run/said >>/run/expected
  wait_for 120 complete || fail "heard $(stat -c %s /run/heard) of $(stat -c %s /run/expected) bytes from the $1"
}
number=$(cat "$far/devnum")
# unnoticed WHAT: the lent device is the same one, and the kernel says nothing of it.
unnoticed() {
  dmesg -c >/run/noticed
  if grep "$(basename "$far")" /run/noticed; then fail "the kernel noticed $1"; fi
  [ "$number" = "$(cat "$far/devnum")" ] || fail "it was device $number and is $(cat "$far/devnum") after $1"
}
talk first
dmesg -c >/dev/null
farbus swap $lent --to usb:serial=rig-second || fail "farbus swap to the twin"
unnoticed "the twin"
has_driver "$second" usbfs || fail "the twin has the driver $(driver_of "$second")"
farbus status | tee /run/status
grep -q "its twin usb:$(basename "$second") has its place" /run/status || fail "the status does not say what has its place"
talk second
farbus swap $lent --to $lent || fail "farbus swap back"
unnoticed "the way back"
wait_for 10 has_driver "$second" ftdi_sio || fail "the twin was not given back: $(driver_of "$second")"
talk first
cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
# Unplugged, the twin takes the lent device along.
farbus swap $lent --to usb:serial=rig-second || fail "farbus swap to the twin again"
kill $reader
exec 3>&-
say unplug
no_far() { [ ! -e "$far" ]; }
wait_for 20 no_far || fail "the lent device is still there"
wait "$attach_pid"
status=$?
[ $status = 4 ] || fail "farbus attach ended with $status"
kill -INT $share_pid
wait $share_pid || fail "farbus share ended with $?: $(cat /run/share.log)"
wait_for 10 has_driver "$first" ftdi_sio || fail "the first was not given back: $(driver_of "$first")"
echo "note: $(stat -c %s /run/heard) bytes each way by two adapters, device $number throughout"
