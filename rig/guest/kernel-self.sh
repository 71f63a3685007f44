# Makes a disk from the kernel's own gadget and offers it by the kernel's own exporter. The script after this one
# uses it as DEVICE, as if it were farbus's.
disk_gadget dummy_udc.0
has_gadget() { usb_device 1d6b:0104; }
wait_for 5 has_gadget || fail "the gadget did not enumerate"
DEVICE=$(basename "$(usb_device 1d6b:0104)")
usbipd -D || fail "usbipd"
usbip bind -b "$DEVICE" || fail "bind"
can_list() { usbip list -r 127.0.0.1 | grep "$DEVICE"; }
wait_for 5 can_list || fail "the exporter does not list the device"
