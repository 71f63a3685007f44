mount -t configfs none /sys/kernel/config
gadget=/sys/kernel/config/usb_gadget/g
mkdir $gadget && cd $gadget || fail "no gadget support"
echo 0x0525 >idVendor
echo 0xa4a0 >idProduct
mkdir configs/c.1 functions/SourceSink.0
ln -s functions/SourceSink.0 configs/c.1
echo dummy_udc.0 >UDC || fail "the gadget does not bind"
cd /
bound() { ls -d /sys/bus/usb/drivers/usbtest/*:*; }
wait_for 10 bound || fail "usbtest did not take the gadget"
start=$(uptime_now)
test_all "$(usb_node "$(usb_device 0525:a4a0)")"
echo "pass took $(elapsed "$start" "$(uptime_now)") s"
true
