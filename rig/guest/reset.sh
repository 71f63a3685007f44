attach_disk 1-1
# Small commands: many of them, so that resets fall into and between them.
echo 64 >/sys/block/"$dev"/queue/max_sectors_kb
node=$(usb_node "$(dirname "$(usb_interface_of "$dev")")")
sha256sum <"/dev/$dev" >/run/sum &
reader=$!
resets=0
while kill -0 $reader 2>/dev/null && [ $resets -lt 6 ]; do
  sleep 0.3
  usbreset "$(echo "$node" | sed 's|/dev/bus/usb/||')" || fail "usbreset"
  resets=$((resets + 1))
done
wait $reader
[ "$(cut -d ' ' -f 1 /run/sum)" = "$SUM" ] || fail "what was read is not what the disk holds"
dmesg | grep "usb .*: reset"
[ "$(disk)" = "$dev" ] || fail "the disk has another name now: the device was enumerated anew"
detach
