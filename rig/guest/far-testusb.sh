# The kernel's own tests of unlinking and of bulk data, on a device whose data farbus receives ahead of the driver.
share zero
bound() { ls -d /sys/bus/usb/drivers/usbtest/*:*; }
for rtt in $RTTS; do
  distance "$rtt"
  ATTACH_OPTIONS="--via kernel --grace 20"
  attach 1-1
  wait_for 30 bound || fail "usbtest did not take the device"
  device=$(usb_node "$(usb_device 0525:a4a0)")
  : >/run/pass
  start=$(uptime_now)
  for number in 27 28 29; do testusb -D "$device" -t $number -c 16 -s 2048 -g 8 -v 512 >>/run/pass 2>&1; done
  for number in 11 12 24; do testusb -D "$device" -t $number -c 16 -s 2048 -g 8 >>/run/pass 2>&1; done
  # Once more, with what the first round left behind.
  for number in 28 2 4 6 8; do testusb -D "$device" -t $number -c 16 -s 2048 -g 8 -v 512 >>/run/pass 2>&1; done
  grep -v '^high speed' /run/pass
  passed=$(grep -c secs /run/pass)
  echo "far: at $rtt ms $passed of 11 tests in $(elapsed "$start" "$(uptime_now)") s"
  [ "$passed" = 11 ] || fail "$(cat /run/pass)"
  [ -c "$device" ] || fail "the device has gone"
  detach
done
distance 0
unshare
