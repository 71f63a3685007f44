# The virtual machine that has a lent serial adapter by usbredir, which is swapped for another one while it is open.
adapter() {
  for folder in /sys/bus/usb/devices/*-*; do
    [ "$(cat "$folder/serial" 2>/dev/null)" = rig-first ] && echo "$folder"
  done | grep .
}
wait_for 60 adapter || fail "no device came by usbredir"
far=$(adapter)
tty() { ls -d "$far"/*:*/ttyUSB* 2>/dev/null | head -n 1 | grep .; }
wait_for 20 tty || fail "no serial port appeared"
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
# unnoticed WHAT: the device is the same one, and the kernel says nothing of it.
unnoticed() {
  dmesg -c >/run/noticed
  if grep -e "usb $(basename "$far")" -e ttyUSB /run/noticed; then fail "the kernel noticed $1"; fi
  [ "$number" = "$(cat "$far/devnum")" ] || fail "it was device $number and is $(cat "$far/devnum") after $1"
}
talk first
dmesg -c >/dev/null
say plugged
await swapped
unnoticed "the twin"
talk second
say next
await restored
unnoticed "the way back"
talk first
cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
kill $reader
exec 3>&-
say last
no_far() { [ ! -e "$far" ]; }
wait_for 60 no_far || fail "the device is still there"
echo "note: $(stat -c %s /run/heard) bytes each way by two adapters, device $number throughout"
