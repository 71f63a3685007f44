# A serial line 100 ms away that returns what is sent: 3 Mbit/s in both directions, by the kernel's cdc_acm.
has_tty() { [ -c /dev/ttyACM0 ]; }
no_tty() { [ ! -e /dev/ttyACM0 ]; }
share serial
distance $RTT
for client in stock farbus; do
  CLIENT=$client
  amount=$BYTES
  [ $client = farbus ] || amount=65536
  ATTACH_OPTIONS="--via kernel --grace 20"
  attach 1-1
  wait_for 30 has_tty || fail "no serial port appeared"
  sleep 1
  said=$(measure bytes /dev/ttyACM0 /dev/ttyACM0 $amount 3000000 0) || fail "$client: $said"
  echo "far: bytes at $RTT ms by $client: $said"
  [ $client = stock ] || {
    rate=$(echo "$said" | sed -n 's/.*: \([0-9]*\) B.*/\1/p')
    # Long enough to fill all buffers: a megabyte, and the terminal's own.
    said=$(measure bytes /dev/ttyACM0 /dev/ttyACM0 3000000 3000000 8000) || fail "a reader that looks away: $said"
    echo "far: and of a reader that looks away for 8 s: $said"
  }
  detach
  wait_for 10 no_tty || fail "the port stayed after detach"
done
distance 0
unshare
# What is under way when the last byte leaves takes its time, too.
[ "$rate" -ge 285000 ] || fail "$rate bytes a second are not the line's rate"
