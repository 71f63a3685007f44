attach_disk 1-1
(while dd if="/dev/$dev" of=/dev/null bs=128k iflag=direct 2>/dev/null; do :; done) &
sleep 0.5
start=$(uptime_now)
kill -9 "$share_pid"
wait_for 5 no_port_in_use || fail "the port is still in use"
# The same disk again, by its own driver.
has_own() { has_disk && case $(realpath "/sys/block/$(disk)") in *vhci*) false ;; esac }
wait_for 10 has_own || fail "the stick was not given back to its driver: $(cat /run/share.log)"
echo "note: given back $(elapsed "$start" "$(uptime_now)") s after the kill"
dd if="/dev/$(disk)" of=/dev/null bs=128k count=8 iflag=direct 2>/dev/null || fail "it does not read"
# And nothing stands against sharing it again.
share_usb 46f4:0001
unshare_usb usb-storage
