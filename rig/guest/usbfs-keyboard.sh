# First detaches its own driver: the keys have to arrive through farbus alone.
near_bound() { [ -e "/sys/bus/usb/devices/$(basename "$(near_device 0627:0001)"):1.0/driver" ]; }
wait_for 15 near_bound || fail "no keyboard in the guest"
share_usb 0627:0001
