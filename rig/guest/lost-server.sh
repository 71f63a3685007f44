attach_disk 1-1
(while dd if="/dev/$dev" of=/dev/null bs=128k iflag=direct 2>/dev/null; do :; done) &
sleep 0.5
say reading
wait_for 20 no_disk || fail "the disk is still there"
say gone
wait_for 5 no_port_in_use || fail "the port is still in use"
if [ "$CLIENT" = farbus ]; then
  ended() { ! kill -0 "$attach_pid"; }
  wait_for 10 ended || fail "farbus attach goes on without a link"
  wait "$attach_pid" && fail "farbus attach ended well although the link was lost"
  sed 's/^/farbus: /' /run/attach.log
fi
true
