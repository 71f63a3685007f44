attach_disk 1-1
# Many small commands, so that resets happen during and between them.
echo 64 >/sys/block/"$dev"/queue/max_sectors_kb
node=$(usb_node "$(dirname "$(usb_interface_of "$dev")")")
# The disk is being read at each reset, however fast it is.
read_on() {
  until [ -e /run/enough ]; do
    echo 3 >/proc/sys/vm/drop_caches
    [ "$(sha256sum <"/dev/$dev" | cut -d ' ' -f 1)" = "$SUM" ] || return 1
  done
}
read_on &
reader=$!
for reset in 1 2 3 4 5 6; do
  sleep 0.3
  usbreset "$(echo "$node" | sed 's|/dev/bus/usb/||')" || fail "usbreset $reset"
done
touch /run/enough
wait $reader || fail "what was read is not what the disk holds"
dmesg | grep "usb .*: reset"
[ "$(disk)" = "$dev" ] || fail "the disk has another name now: the device was enumerated anew"
detach
