# usbipd leaves a device that is in use out of its list, and answers "busy" to a client that asks for it all the same.
attach_disk "$DEVICE"
refused 3 refused
grep -q "in use" /run/refusal || fail "farbus attach does not say that the device is in use"
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
wait_for 5 is_listed || fail "usbipd does not list it again: $(cat /run/list)"
