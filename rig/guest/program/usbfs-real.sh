# The commands of rig/guest/usbfs.c to the kernel's own gadgets, first through the kernel's usbfs, then inside `farbus run`, while farbus shares them by
# way of that usbfs.
mount -t configfs none /sys/kernel/config
# plug_in FUNCTION: a gadget with this function of the kernel's; sets $endpoints.
plug_in() {
  gadget=/sys/kernel/config/usb_gadget/$1
  mkdir "$gadget" && cd "$gadget" || fail "no gadget support"
  echo 0x0525 >idVendor
  echo 0xa4a0 >idProduct
  mkdir configs/c.1 "functions/$1.0"
  ln -s "functions/$1.0" configs/c.1
  echo dummy_udc.0 >UDC || fail "the gadget does not bind"
  cd /
  near 0525:a4a0
  endpoints="$(ls "$near/$(basename "$near"):1.0" | sed -n 's/^ep_\(8.\)/\1/p') $(ls "$near/$(basename "$near"):1.0" | sed -n 's/^ep_\(0.\)/\1/p')"
}
gone() { ! near_device 0525:a4a0; }
pull_out() {
  echo >"$gadget/UDC"
  wait_for 10 gone || fail "the gadget is still plugged in"
}
while read -r function parts; do
  plug_in "$function"
  for part in $parts; do
    usbfs "$part" "$(usb_node "$near")" 0 $endpoints </dev/null >"/tmp/near.$part" 2>&1 || fail "$part: $(cat "/tmp/near.$part")"
  done
  share "usb:$(basename "$near")"
  for part in $parts; do
    inside 1-1 -- sh -c 'exec usbfs "$0" /dev/bus/usb/*/002 0 "$@"' "$part" $endpoints </dev/null >"/tmp/far.$part" 2>&1 || fail "$part: $(cat "/tmp/far.$part")"
    sed "s/^/near| $part, /" "/tmp/near.$part"
    sed "s/^/far| $part, /" "/tmp/far.$part"
  done
  unshare
  pull_out
done <<END
SourceSink source
Loopback rules loop
END
