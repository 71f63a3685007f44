# The commands of rig/guest/usbfs.c to each device, first through the guest's kernel, to which usbip attaches it, then inside `farbus run`.
share serial zero audio
# Lines of: part, device, vendor and product, interface, endpoints.
tests() {
  cat <<END
rules 1-1 0525:a4a7 1 81 01
loop 1-1 0525:a4a7 1 81 01
source 1-2 0525:a4a0 0 81 01
settings 1-3 $AUDIO
END
}
tests >/tmp/tests
while read -r part device id endpoints; do
  attach "$device" </dev/null
  attached() { far=$(far_device "$id") && [ -n "$(cat "$far/bConfigurationValue")" ]; }
  wait_for 15 attached || fail "$id did not appear"
  attached
  usbfs "$part" "$(usb_node "$far")" $endpoints </dev/null >"/tmp/near.$part" 2>&1 || fail "$part: $(cat "/tmp/near.$part")"
  detach
  inside "$device" -- sh -c 'exec usbfs "$0" /dev/bus/usb/*/002 "$@"' "$part" $endpoints </dev/null >"/tmp/far.$part" 2>&1 || fail "$part: $(cat "/tmp/far.$part")"
  sed "s/^/near| $part, /" "/tmp/near.$part"
  sed "s/^/far| $part, /" "/tmp/far.$part"
done </tmp/tests
unshare
