mount -t configfs none /sys/kernel/config
truncate -s 8M /run/disk
head -c 1000000 /dev/urandom | dd of=/run/disk conv=notrunc 2>/dev/null
gadget=/sys/kernel/config/usb_gadget/g
mkdir $gadget && cd $gadget || fail "no gadget support"
echo 0x1d6b >idVendor
echo 0x0104 >idProduct
mkdir strings/0x409 configs/c.1 functions/mass_storage.0
echo self >strings/0x409/product
echo /run/disk >functions/mass_storage.0/lun.0/file
ln -s functions/mass_storage.0 configs/c.1
echo dummy_udc.0 >UDC
cd /

has_gadget() { usb_device 1d6b:0104; }
wait_for 5 has_gadget || fail "the gadget did not enumerate"
busid=$(basename "$(usb_device 1d6b:0104)")
usbipd -D || fail "usbipd"
usbip bind -b "$busid" || fail "bind"
can_list() { usbip list -r 127.0.0.1 | grep "$busid"; }
wait_for 5 can_list || fail "the exporter does not list the device"
attach_disk "$busid"
[ "$(cat /sys/block/"$dev"/size)" = 16384 ] || fail "wrong size"
sum=$(sha256sum </run/disk)
[ "$(sha256sum <"/dev/$dev")" = "$sum" ] || fail "read other data than there is"
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
