# How long it takes until a device has its driver, here and 100 ms away: by farbus in a session, and by the kernel's own usbip.
RTT=100
truncate -s 64M /tmp/disk
share disk:/tmp/disk keyboard serial audio
export FARBUS_LOG=debug
index=0
for device in storage:usb-storage keyboard:usbhid serial:cdc_acm audio:snd-usb-audio; do
  index=$((index + 1))
  name=${device%%:*}
  driver=${device##*:}
  for rtt in 0 $RTT; do
    distance $rtt
    CLIENT=stock
    attached "$driver" usbip --tcp-port "$PORT" attach -r "$EXPORTER" -b 1-$index
    eval "stock_$rtt=$total"
    # Wait until the driver has asked everything.
    sleep $((1 + rtt / 50))
    detach
    CLIENT=farbus
    attached "$driver" farbus attach "$EXPORTER:$PORT/1-$index" --via kernel --grace 20
    eval "whole_$rtt=$total session_$rtt=$session"
    sleep $((1 + rtt / 50))
    farbus detach || fail "farbus detach"
    wait_for 5 no_port_in_use || fail "the port is still in use after detach"
  done
  # The kernel's own time is the same at any distance: it waits a tenth of a second before it trusts a port.
  trips=$(per $((session_100 - session_0)) $RTT)
  echo "far: $name $trips round trips in a session that stands ($session_0 ms near, $session_100 ms far), $(per $((whole_100 - whole_0)) $RTT) with its beginning ($whole_0, $whole_100 ms); by the kernel's usbip $(per $((stock_100 - stock_0)) $RTT) ($stock_0, $stock_100 ms)"
  [ "$name" = audio ] || [ $((session_100 - session_0)) -le $((4 * RTT + RTT / 20)) ] || slow="$slow $name"
done
distance 0
unshare
[ -z "$slow" ] || fail "more than four round trips:$slow"
