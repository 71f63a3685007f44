# A device with endpoints of every type, made of code: attached once through vhci, taken there through usbfs, attached again.
# Each URB of the tests crosses two exporters and the kernel's vhci twice.
farbus share zero --listen 127.0.0.1:3300 >/run/zero.log 2>&1 &
listening() { grep -q "listening on" "$1"; }
wait_for 20 listening /run/zero.log || fail "share zero: $(cat /run/zero.log)"
farbus attach 127.0.0.1:3300/zero --via kernel >/run/first.log 2>&1 &
bound() { ls -d /sys/bus/usb/drivers/usbtest/*:*; }
wait_for 20 bound || fail "usbtest did not take the device: $(cat /run/first.log)"
first=$(basename "$(usb_device 0525:a4a0)")
farbus share "usb:$first" --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
wait_for 20 listening /run/share.log || fail "share: $(cat /run/share.log)"
attach 1-1
second() { bound | grep -v "/$first:"; }
wait_for 20 second || fail "usbtest did not take the device a second time: $(cat /run/share.log)"
second=$(basename "$(second)")
start=$(uptime_now)
test_all "$(usb_node "/sys/bus/usb/devices/${second%%:*}")"
echo "note: pass took $(elapsed "$start" "$(uptime_now)") s"
cat /run/share.log
