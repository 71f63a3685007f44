# A way that takes its time, for what follows. Exporter and importer are one guest, whose lo it is; the guest's time is its own.

# A machine of half a gigabyte lets a connection have less on its way than one with the memory that is usual: that one's limits.
echo "4096 131072 6291456" >/proc/sys/net/ipv4/tcp_rmem
echo "4096 16384 4194304" >/proc/sys/net/ipv4/tcp_wmem

# distance MS [JITTER_MS]: how long lo takes there and back from now on, and how much longer or shorter a packet may be on its way, each way.
# What was sent first arrives first: a way that shakes does not overtake.
distance() {
  /usr/bin/tc qdisc del dev lo root 2>/dev/null
  [ "$1" = 0 ] && return
  half=$(($1 * 1000 / 2))
  /usr/bin/tc qdisc add dev lo root handle 1: netem delay ${half}us ${2:+${2}ms} limit 100000 || fail "no netem"
  [ -z "$2" ] || /usr/bin/tc qdisc add dev lo parent 1:1 pfifo limit 100000 || fail "no order"
}

# share WHAT...: offers it all, for stock importers and for sessions.
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

# attached DRIVER COMMAND...: runs it, and leaves what "measure attach" says of it in $total and $session.
attached() {
  measure attach "$@" >/run/attached || fail "$* $(cat /run/attached)"
  read -r total session </run/attached
}

# A whole number in tenths of what one of them is worth: 3.1 for (313, 100).
per() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", a / b }'; }
share_of() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%d", 100 * a / (b > 0 ? b : 1) }'; }
