# A gadget without a controller of this machine: the kernel's usbip-vudc exports it directly.
disk_gadget usbip-vudc.0
DEVICE=usbip-vudc.0
usbipd --device -D || fail "usbipd"
is_listed() { farbus list "$EXPORTER:$PORT" >/run/list 2>&1 && grep -q " $DEVICE .* 1d6b:0104 " /run/list; }
wait_for 5 is_listed || fail "farbus list does not show it: $(cat /run/list)"
cat /run/list
