# A machine whose keyboard the kernel's exporter offers to others, until its power is cut.
near() { near_device 0627:0001; }
wait_for 20 near || fail "this machine has no keyboard"
device=$(basename "$(near)")
usbipd -D || fail "usbipd"
usbip bind -b "$device" || fail "bind"
is_offered() { usbip list -r 127.0.0.1 2>/dev/null | grep -q "0627:0001"; }
wait_for 10 is_offered || fail "usbip list does not show it"
say offered "$device"
await nothing
