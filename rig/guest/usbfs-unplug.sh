wait_for 15 has_disk || fail "no disk in the guest"
share_usb 46f4:0001
wait_for 5 no_disk || fail "its driver still has the disk that farbus took"
attach_disk 1-1
(while dd if="/dev/$dev" of=/dev/null bs=128k iflag=direct 2>/dev/null; do :; done) &
sleep 0.5
say reading
listed() { farbus list "127.0.0.1:$PORT" | grep -q ' 1-1 '; }
not_listed() { ! listed; }
wait_for 30 no_disk || fail "the disk is still there"
start=$(uptime_now)
wait_for 5 not_listed || fail "the device is still listed: $(cat /run/share.log)"
wait_for 5 no_port_in_use || fail "the port is still in use"
[ "$CLIENT" = farbus ] && { wait "$attach_pid"; sed 's/^/farbus: /' /run/attach.log; }
cat /run/share.log
say pulled

# Plugged in again, it is offered again under the same name and bus id.
await plugged
wait_for 15 listed || fail "what was plugged in again is not listed: $(cat /run/share.log)"
attach_disk 1-1
dd if="/dev/$dev" of=/run/read bs=128k count=16 iflag=direct 2>/dev/null || fail "read after re-plug"
[ "$(sha256sum </run/read)" = "$SUM" ] || fail "what was read is not what is on the stick"
detach
unshare_usb usb-storage
