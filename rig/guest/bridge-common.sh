# Steps of two machines that a bridge joins, however its ends are attached. OWN and OTHER are their addresses.
ip=/usr/bin/ip
adapter() {
  for name in /sys/class/net/*; do
    [ "$(basename "$(readlink "$name/device/driver")")" = cdc_ncm ] && basename "$name"
  done | grep .
}
no_adapter() { [ -z "$(adapter)" ]; }
carrier() { [ "$(cat "/sys/class/net/$net/carrier" 2>/dev/null)" = "$1" ]; }
raw() { bulkpair "$(usb_node "$(far_device 0525:a4a1)")" 2 "$@" || fail "raw $*: $(dmesg | tail -n 5)"; }

# Brings up the adapter of this machine's end.
with_adapter() {
  wait_for 20 adapter || fail "cdc_ncm drives nothing"
  net=$(adapter)
  $ip addr add "$OWN/24" dev "$net" && $ip link set "$net" up || fail "$net does not go up"
}
# Handles a request of the host, if it is one of these.
common() {
  case $1 in
  plugged) wait_for 10 carrier 1 || fail "no carrier" ;;
  unplugged) wait_for 10 carrier 0 || fail "a carrier with nobody at the other end" ;;
  ping)
    ping -c 5 -i 0.2 -s 1400 "$OTHER" >/run/ping 2>&1 || fail "ping: $(cat /run/ping)"
    grep -E 'packets|round-trip' /run/ping
    ;;
  serve)
    iperf3 -s -1 >/run/served 2>&1 &
    # Port 5201 as the kernel shows it, because iperf3 buffers its output.
    listening() { cat /proc/net/tcp /proc/net/tcp6 | grep -q ':1451 [0-9A-F]*:0000 0A'; }
    wait_for 10 listening || fail "iperf3 -s: $(cat /run/served)"
    ;;
  there | back)
    [ $word = back ] && reverse=-R || reverse=
    iperf3 -c "$OTHER" -t 3 -f m $reverse >/run/measured 2>&1 || fail "iperf3: $(cat /run/measured)"
    sed -n "s/^.*  \([0-9.]* Mbits\/sec\).*receiver.*/$word \1/p" /run/measured
    ;;
  give) raw 03 200 16384 ;;
  take) raw 83 200 16384 ;;
  end) exit 0 ;;
  *) return 1 ;;
  esac
}
