# The kernel's own gadget: farbus takes it from usbtest, and usbtest uses it through farbus.
mount -t configfs none /sys/kernel/config
gadget=/sys/kernel/config/usb_gadget/g
mkdir $gadget && cd $gadget || fail "no gadget support"
echo 0x0525 >idVendor
echo 0xa4a0 >idProduct
mkdir configs/c.1 functions/SourceSink.0
ln -s functions/SourceSink.0 configs/c.1
echo dummy_udc.0 >UDC || fail "the gadget does not bind"
cd /
near_bound() { [ -e "$(near_device 0525:a4a0)/$(basename "$(near_device 0525:a4a0)"):1.0/driver" ]; }
wait_for 10 near_bound || fail "usbtest did not take the gadget"
share_usb 0525:a4a0
attach 1-1
far_bound() { far=$(far_device 0525:a4a0) && [ -e "$far/$(basename "$far"):1.0/driver" ]; }
wait_for 10 far_bound || fail "usbtest did not take the device"
start=$(uptime_now)
test_all "$(usb_node "$(far_device 0525:a4a0)")"
echo "note: pass took $(elapsed "$start" "$(uptime_now)") s"
detach
unshare_usb usbtest
