# The guest's own stick, offered by the kernel's exporter and its usbipd, for the checks of the script behind this one.
wait_for 15 has_disk || fail "no disk in the guest"
DEVICE=$(basename "$(near_device 46f4:0001)")
usbipd -D || fail "usbipd"
usbip bind -b "$DEVICE" || fail "bind"
wait_for 5 no_disk || fail "its driver still has the disk that usbip-host took"
is_listed() { farbus list "$EXPORTER:$PORT" >/run/list 2>&1 && grep -q " $DEVICE .* 46f4:0001 " /run/list; }
wait_for 5 is_listed || fail "farbus list does not show it: $(cat /run/list)"
