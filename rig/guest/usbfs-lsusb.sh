# Every device of the guest except hubs, before it is shared and through farbus.
own() {
  for folder in /sys/bus/usb/devices/*-*; do
    case $folder in *:*) continue ;; esac
    [ "$(cat "$folder/bDeviceClass")" = 09 ] || basename "$folder"
  done
}
count_of_own() { [ "$(own | wc -l)" = "$DEVICES" ]; }
wait_for 20 count_of_own || fail "the guest has only these devices: $(own)"
# Only bus and device number may differ.
seen() { lsusb -v -s "$(cat "$1/busnum"):$(cat "$1/devnum")" 2>&1 | sed 1,2d | grep -v '^Bus '; }
sleep 1
index=0
words=
for bus_id in $(own); do
  index=$((index + 1))
  seen "/sys/bus/usb/devices/$bus_id" >/run/near.$index
  echo "$(cat /sys/bus/usb/devices/"$bus_id"/idVendor):$(cat /sys/bus/usb/devices/"$bus_id"/idProduct)" >/run/id.$index
  words="$words usb:$bus_id"
done
rm -f /run/share.log
farbus share $words --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
listening() { grep "listening on" /run/share.log; }
wait_for 20 listening || fail "share: $(cat /run/share.log)"
cat /run/share.log
index=0
while [ $index -lt "$DEVICES" ]; do
  index=$((index + 1))
  id=$(cat /run/id.$index)
  attach 1-$index
  attached() { far_device "$id" && [ -n "$(cat "$(far_device "$id")/bConfigurationValue")" ]; }
  wait_for 15 attached || fail "$id did not appear"
  sleep 0.5
  seen "$(far_device "$id")" >/run/far.$index
  [ "$(wc -l </run/near.$index)" -gt 20 ] || fail "lsusb says nothing of $id: $(cat /run/near.$index)"
  diff /run/near.$index /run/far.$index || fail "$id is not the same on both sides"
  echo "same: $id, $(wc -l </run/near.$index) lines"
done
