# The guest's own stick, first with its own driver. The script after this one uses it through farbus.
wait_for 15 has_disk || fail "no disk in the guest"
share_usb 46f4:0001
wait_for 5 no_disk || fail "its driver still has the disk that farbus took"
