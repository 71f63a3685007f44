# The exporter has a USB-CAN adapter with two channels. On the first bus a unit sends a counter; on the second only the adapter sends.
has_can() { [ -e /sys/class/net/can1 ]; }
no_can() { [ ! -e /sys/class/net/can0 ]; }
ip=/usr/bin/ip
attach "${DEVICE:-1-1}"
wait_for 15 has_can || fail "no CAN interface appeared"
for bus in can0 can1; do
  $ip link set $bus type can bitrate 500000 && $ip link set $bus up || fail "$bus does not go up"
done
candump -L -n $FRAMES can0 >/run/heard || fail "candump"
candump -L -n $FRAMES can1 >/run/sent &
listener=$!
sleep 0.3
cangen can1 -g 1 -n $FRAMES -I 123 -L 8 -D i -p 10 || fail "cangen"
wait $listener || fail "candump of what was sent"
sed 's/^/heard /' /run/heard
sed 's/^/sent /' /run/sent
say sent
await "go on"
$ip link set can0 down
$ip link set can1 down
detach
wait_for 10 no_can || fail "the interfaces stay"
