tty() { ls /sys/bus/usb-serial/devices | head -n 1; }
has_tty() { t=$(tty) && [ -n "$t" ] && [ -c "/dev/$t" ]; }
wait_for 15 has_tty || fail "no serial port in the guest"
[ -e /sys/devices/platform/vhci_hcd.0 ] && fail "there is a vhci_hcd"
share_usb 0403:6001
attach 1-1
wait_for 20 grep -q "attached at tcp://127.0.0.1:6638" /run/attach.log || fail "attach: $(cat /run/attach.log)"
seq 1 400 | sed 's/^/the quick brown fox number /' >/run/said
tr a-z A-Z </run/said >/run/expected
(cat /run/said; sleep 100) | nc 127.0.0.1 6638 >/run/heard &
complete() { [ "$(stat -c %s /run/heard)" -ge "$(stat -c %s /run/expected)" ]; }
wait_for 60 complete || fail "heard $(stat -c %s /run/heard) of $(stat -c %s /run/expected) bytes: $(cat /run/attach.log)"
cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
echo "note: $(stat -c %s /run/heard) bytes each way"
kill -INT "$attach_pid"
wait "$attach_pid" || fail "farbus attach ended with $?: $(cat /run/attach.log)"
unshare_usb ftdi_sio
