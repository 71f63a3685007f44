# A disk that loses its power, attached by uas, while its link is cut and each of its processes is killed, stopped and restarted. Four
# threads write it, check what they read, and know what a flush has covered (flushed.c).
#
# The medium is the kernel's null_blk with a volatile cache: when its power is cut, what was not flushed is gone. It has a partition, whose
# number makes it the same disk to an exporter that starts again. The exporter is a daemon, so that it can be restarted in use. (The bad
# sectors that null_blk can be told of refuse nothing in this kernel; media that fail are played by cargo xtask durability.)
ATTACH_OPTIONS="--via uas --grace 120 --wait=60"
HANGS_S=180

mount -t configfs none /sys/kernel/config || fail "no configfs"
medium=/sys/kernel/config/nullb/nullb1
mkdir "$medium" || fail "no medium"
echo 1 >$medium/memory_backed && echo 512 >$medium/blocksize && echo 8 >$medium/size && echo 2 >$medium/cache_size || fail "the medium"
echo 1 >$medium/power || fail "the medium has no power"
whole=nullb$(cat $medium/index)
[ "$(cat "/sys/block/$whole/queue/write_cache")" = "write back" ] || fail "the medium has no cache"
dd if="$PARTITIONS" of="/dev/$whole" bs=512 conv=fsync 2>/dev/null && blockdev --rereadpt "/dev/$whole" || fail "the medium gets no partition"
node=/dev/${whole}p1
has_node() { [ -b "$node" ]; }
wait_for 10 has_node || fail "the medium has no partition"
power_cycle() {
  echo 0 >$medium/power || fail "the power stays"
  [ -z "$1" ] || "$@"
  echo 1 >$medium/power || fail "the power does not come back"
  wait_for 10 has_node || fail "the partition does not come back"
}

cat >/run/farbus.toml <<END
plain.listen = ["127.0.0.1:$PORT"]
[[share]]
what = "disk:$node"
name = "disk"
END
serve() {
  rm -f /run/share.log
  env FARBUS_STATE=/run/exporter farbus daemon --config /run/farbus.toml >/run/share.log 2>&1 &
  wait_for 30 grep -q "listening on" /run/share.log || fail "daemon: $(cat /run/share.log)"
}
attach() {
  rm -f /run/attach.log
  env FARBUS_STATE=/run/importer farbus attach "$EXPORTER:$PORT/$1" $ATTACH_OPTIONS >/run/attach.log 2>&1 &
  attach_pid=$!
}
# All processes of the exporter, or of the importer.
processes() {
  for process in /proc/[0-9]*; do
    tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qx "FARBUS_STATE=/run/$1" && basename "$process"
  done
}
signal() {
  for process in $(processes "$2"); do kill -"$1" "$process" 2>/dev/null; done
  true
}
ended() { [ -z "$(processes "$1")" ]; }
kill_all() {
  signal KILL "$1"
  wait_for 20 ended "$1" || fail "processes of the $1 stay: $(processes "$1")"
}

begin() {
  attach_disk disk
  driver=$(basename "$(readlink "$(usb_interface_of "$dev")/driver")")
  [ "$driver" = uas ] || fail "driver is $driver"
  flushed "/dev/$dev" /run/state >>/run/flushed 2>&1 &
  worker=$!
}
errors() { flushed /run/state errors; }
has_error() { [ "$(errors)" -gt "$told" ]; }

# One fault, and what its owner would mend.
make() {
  told=$(errors)
  case $1 in
  cut)
    # Longer than TCP waits for an answer here.
    ip link set lo down || fail "the link does not go down"
    sleep 6
    ip link set lo up
    ;;
  exporter-stopped) signal STOP exporter && sleep 3 && signal CONT exporter ;;
  importer-stopped) signal STOP importer && sleep 3 && signal CONT importer ;;
  exporter-restarted)
    farbus daemon restart >/run/restart 2>&1 || fail "restart: $(cat /run/restart /run/share.log)"
    ;;
  exporter-killed) kill_all exporter && serve ;;
  power-cut)
    signal STOP exporter
    power_cycle kill_all exporter
    serve
    ;;
  importer-killed)
    kill_all importer
    wait_for 60 no_disk || fail "the disk stays without its importer"
    wait_for 60 no_port_in_use || fail "the port is still in use"
    wait $worker
    [ $? = 3 ] || fail "the disk's user ended otherwise: $(tail -n 20 /run/flushed)"
    begin
    ;;
  esac
}

serve
: >/run/flushed
begin
faults=0 slowest=0
flushed /run/state settle $HANGS_S >/run/settled || fail "nobody begins: $(cat /run/settled /run/flushed)"
for pass in $(seq "$TIMES"); do
  for fault in cut exporter-killed exporter-stopped power-cut importer-stopped exporter-restarted importer-killed; do
    make $fault
    flushed /run/state settle $HANGS_S >/run/settled || fail "hangs after $fault: $(cat /run/settled /run/flushed /run/share.log)"
    [ "$(cat /run/settled)" -le $slowest ] || slowest=$(cat /run/settled)
    [ ! -s /run/flushed ] || fail "after $fault: $(cat /run/flushed)"
    # Only a disk that is gone may fail a request.
    case $fault in
    importer-killed) ;;
    *) has_error && fail "$fault failed a request: $(tail -n 20 /run/share.log)" ;;
    esac
    faults=$((faults + 1))
  done
done
kill -TERM $worker
wait $worker || fail "the disk's user ended with $?: $(cat /run/flushed)"
detach
wait_for 10 no_disk || fail "the disk stayed after detach"
kill_all exporter
# What the detached disk's medium has when its power is cut once more.
power_cycle
flushed "$node" /run/state look >/run/looked || fail "the medium: $(cat /run/looked)"
cat /run/looked
grep -q "^flushed: 0 bytes lost, 0 stale reads, " /run/looked || fail "$(cat /run/looked)"
echo "note: $faults faults, $(sed -n 's/^flushed: //p' /run/looked), 0 hangs; flushed again within $slowest ms"
