# One stock system whose lo takes 25 ms each way: the same disk by the device itself, and as one that takes many commands at a time.
MIB=$((1 << 20))
truncate -s 64M /tmp/disk
dd if=/dev/urandom of=/tmp/disk bs=$MIB count=64 conv=notrunc 2>/dev/null
farbus share disk:/tmp/disk --listen 127.0.0.1:$PORT >/run/share.log 2>&1 &
share=$!
listening() { grep "listening on" /run/share.log; }
wait_for 10 listening || fail "farbus share: $(cat /run/share.log)"
/usr/bin/tc qdisc add dev lo root netem delay 25ms limit 100000 || fail "no netem"

# Four readers, each of its own part, past the page cache. Says the rate in KiB a second.
read_by_four() {
  begin=$(uptime_now)
  for part in 0 1 2 3; do
    /usr/bin/dd if="/dev/$dev" of="/run/part-$part" bs=512K count=$1 skip=$((part * 16)) iflag=direct 2>/run/dd-$part &
    pids="$pids $!"
  done
  wait $pids || fail "dd: $(cat /run/dd-*)"
  pids=
  for part in 0 1 2 3; do
    /usr/bin/dd if=/tmp/disk bs=512K count=$1 skip=$((part * 16)) 2>/dev/null | cmp - "/run/part-$part" || fail "part $part is not what was shared"
  done
  awk -v b="$begin" -v e="$(uptime_now)" -v n="$1" 'BEGIN { printf "%d", 4 * 512 * n / (e - b) }'
}

for way in kernel uas; do
  ATTACH_OPTIONS="--via $way --grace 20"
  attach_disk disk
  case $way in
  kernel) rate=$(read_by_four 2) ;;
  uas)
    driver=$(basename "$(readlink "$(usb_interface_of "$dev")/driver")")
    [ "$driver" = uas ] || fail "driver is $driver"
    # The first reading finds out how much may be on its way at a time.
    read_by_four 2 >/dev/null
    many=$(read_by_four 16)
    /usr/bin/dd if=/dev/urandom of=/run/new bs=$MIB count=8 2>/dev/null
    begin=$(uptime_now)
    /usr/bin/dd if=/run/new of="/dev/$dev" bs=$MIB conv=fsync 2>/run/dd || fail "dd: $(cat /run/dd)"
    written=$(awk -v b="$begin" -v e="$(uptime_now)" 'BEGIN { printf "%d", 8 * 1024 / (e - b) }')
    ;;
  esac
  detach
  wait_for 10 no_disk || fail "the disk stayed after detach"
done
kill -INT $share
wait $share || fail "farbus share ended with $? after Ctrl-C: $(cat /run/share.log)"
cmp -n $((8 * MIB)) /run/new /tmp/disk || fail "the image is not what was written"
echo "note: round trip 50 ms, four readers: $rate KiB/s as the device itself, $many KiB/s by uas; written at $written KiB/s"
[ "$many" -gt $((3 * rate)) ] || fail "many commands at a time read no faster: $rate and $many KiB/s"
