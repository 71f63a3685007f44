usbip --tcp-port "$PORT" list -r "$EXPORTER" || fail "usbip list"
attach_disk 1-1
sum=$(sha256sum <"/dev/$dev") || fail "read"
dd if=/dev/zero of="/dev/$dev" bs=64k count=4 conv=fsync 2>/dev/null || fail "write"
attach 1-2
bound() { ls -d /sys/bus/usb/drivers/usbtest/*:*; }
wait_for 10 bound || fail "usbtest did not take the device"
device=$(usb_node "$(usb_device 0525:a4a0)")
for number in 1 2 9 11 13 14 25 26; do testusb -D "$device" -t $number -c 4 -s 1024 -v 33; done
attach 1-3
hid() { ls -d /sys/bus/usb/drivers/usbhid/*:*; }
wait_for 10 hid || fail "usbhid did not take the keyboard"
detach
