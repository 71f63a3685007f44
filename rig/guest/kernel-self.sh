# Makes a disk out of the kernel's own gadget and offers it by the kernel's own exporter; what follows this
# script uses it as DEVICE, as if it were farbus's.
mount -t configfs none /sys/kernel/config
write_tree /run/tree
truncate -s 48M /tmp/disk
mkfs.ext4 -q -F -d /run/tree /tmp/disk || fail "mkfs"
gadget=/sys/kernel/config/usb_gadget/g
mkdir $gadget && cd $gadget || fail "no gadget support"
echo 0x1d6b >idVendor
echo 0x0104 >idProduct
mkdir strings/0x409 configs/c.1 functions/mass_storage.0
echo self >strings/0x409/product
echo 1 >functions/mass_storage.0/lun.0/removable
echo /tmp/disk >functions/mass_storage.0/lun.0/file
ln -s functions/mass_storage.0 configs/c.1
echo dummy_udc.0 >UDC
cd /

has_gadget() { usb_device 1d6b:0104; }
wait_for 5 has_gadget || fail "the gadget did not enumerate"
DEVICE=$(basename "$(usb_device 1d6b:0104)")
usbipd -D || fail "usbipd"
usbip bind -b "$DEVICE" || fail "bind"
can_list() { usbip list -r 127.0.0.1 | grep "$DEVICE"; }
wait_for 5 can_list || fail "the exporter does not list the device"
