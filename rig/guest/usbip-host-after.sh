# After its exporter has given it back, it has its own driver again.
usbip unbind -b "$DEVICE" || fail "unbind"
has_driver() { [ "$(basename "$(readlink "/sys/bus/usb/devices/$DEVICE:1.0/driver")")" = usb-storage ]; }
wait_for 10 has_driver || fail "the stick was not given back to its driver"
