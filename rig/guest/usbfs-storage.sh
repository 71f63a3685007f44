# The guest's own stick, seen by its own driver first; what follows this script uses it by way of farbus.
wait_for 15 has_disk || fail "no disk in the guest"
share_usb 46f4:0001
wait_for 5 no_disk || fail "its driver still has the disk that farbus took"
