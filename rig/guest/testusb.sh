if [ -n "$LOCAL" ]; then
  rm -f /run/share.log
  farbus share zero --listen 127.0.0.1:$PORT >/run/share.log 2>&1 &
  listening() { grep "listening on" /run/share.log; }
  wait_for 10 listening || fail "farbus share: $(cat /run/share.log)"
fi
attach 1-1
bound() { ls -d /sys/bus/usb/drivers/usbtest/*:*; }
wait_for 10 bound || fail "usbtest did not take the device"
device=$(usb_node "$(usb_device 0525:a4a0)")
[ -c "$device" ] || fail "no node $device"

dmesg -c >/dev/null
# A test that fails is reported and the others still run; the host counts.
pass=0
while [ $pass -lt "$TIMES" ]; do
  pass=$((pass + 1))
  start=$(uptime_now)
  test_all "$device" >/run/pass 2>&1
  grep -v '^high speed' /run/pass
  # Unlinked transfers leave many lines in the kernel's log that mean nothing here.
  dmesg -c | grep -v -e 'unlink->seqnum' -e 'was already given back' -e 'unlink retry' >/run/kernel
  if [ "$(grep -c secs /run/pass)" != 30 ] || grep -q lockup /run/kernel; then
    sed 's/^/kernel: /' /run/kernel
  fi
  say pass "$(elapsed "$start" "$(uptime_now)")"
done
[ -c "$device" ] || fail "the device has gone"
detach
