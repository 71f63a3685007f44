# A path with a delay, for the scripts after this one. Exporter and importer are in one guest and use its lo; the guest has a clock of its own.

# With half a gigabyte of memory Linux gives connections smaller buffers than usual: set the usual limits.
echo "4096 131072 6291456" >/proc/sys/net/ipv4/tcp_rmem
echo "4096 16384 4194304" >/proc/sys/net/ipv4/tcp_wmem

# distance MS [JITTER_MS]: sets the round trip of lo, and by how much the delay of a packet varies each way.
# Packets keep their order: jitter does not let one overtake another.
distance() {
  /usr/bin/tc qdisc del dev lo root 2>/dev/null
  [ "$1" = 0 ] && return
  half=$(($1 * 1000 / 2))
  /usr/bin/tc qdisc add dev lo root handle 1: netem delay ${half}us ${2:+${2}ms} limit 100000 || fail "no netem"
  [ -z "$2" ] || /usr/bin/tc qdisc add dev lo parent 1:1 pfifo limit 100000 || fail "no order"
}

# share WHAT...: offers it to stock importers and to sessions.
share() {
  rm -f /run/share.log
  farbus share "$@" --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
  share_pid=$!
  wait_for 20 grep -q "listening on" /run/share.log || fail "farbus share: $(cat /run/share.log)"
}
unshare() {
  kill -INT $share_pid
  wait $share_pid || fail "farbus share ended with $? after Ctrl-C: $(cat /run/share.log)"
}

# attached DRIVER COMMAND...: runs the command, and sets $total and $session from the output of "measure attach".
attached() {
  measure attach "$@" >/run/attached || fail "$* $(cat /run/attached)"
  read -r total session </run/attached
}

# A quotient with one decimal place: 3.1 for (313, 100).
per() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", a / b }'; }
share_of() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%d", 100 * a / (b > 0 ? b : 1) }'; }
