# A disk of this machine's own, attached by uas, while its link is cut, its exporter is killed and its importer is
# killed (kill -9), in turn.
#
# The disk has two halves. In each round fio writes one half at random, syncs it and reads it again; the other half, of
# a round before, has to be there. The bytes say the round and the place. A cut and a killed exporter fail no call, and
# the kernel notices neither. A killed importer ends its disk and fio with it: the half that was being written is
# written anew, and the other half is there.
HALF_BYTES=2097152
ATTACH_OPTIONS="--via uas --grace 60 --wait=60"

serve() {
  rm -f /run/share.log
  farbus share disk:/run/disk.img --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
  share_pid=$!
  wait_for 30 grep -q "listening on" /run/share.log || fail "share: $(cat /run/share.log)"
}

# work FILE HALF ROUND [OPTION...]: writes and verifies, or only verifies.
work() {
  file=$1 half=$2 round=$3
  shift 3
  fio --name=nothing-lost "--filename=$file" --ioengine=libaio --thread --rw=randwrite --bsrange=512-64k --blockalign=512 --iodepth=16 \
    --fsync=50 --end_fsync=1 --size=$HALF_BYTES "--offset=$((half * HALF_BYTES))" "--randseed=$round" --verify=pattern \
    --verify_interval=512 "--verify_pattern=0x$(printf %08x "$round")%o" --verify_fatal=1 --verify_state_save=0 --allow_file_create=0 --minimal "$@"
}
on_disk() { work "/dev/$dev" "$@" --direct=1; }
in_image() { work /run/disk.img "$@" --verify_only=1 --direct=0; }

heard() { dmesg | grep -ciE "error|reset|disconnect|timed out|abort"; }
sectors() { awk '{ print $3 + $7 }' "/sys/block/$dev/stat"; }
is_busy() { [ "$(sectors)" -gt "$((at_first + 64))" ]; }

truncate -s $((2 * HALF_BYTES)) /run/disk.img || fail "no image"
serve
attach_disk 1-1
driver=$(basename "$(readlink "$(usb_interface_of "$dev")/driver")")
[ "$driver" = uas ] || fail "driver is $driver"
on_disk 0 1 >/run/fio 2>&1 || fail "fio: $(cat /run/fio)"
round_of_0=1 cuts=0 exporters=0 importers=0

for fault in $(seq "$((3 * TIMES))"); do
  round=$((fault + 1)) half=$((fault % 2))
  [ $half = 0 ] && other_round=$round_of_1 || other_round=$round_of_0
  before=$(heard) at_first=$(sectors)
  on_disk $half $round >/run/fio 2>&1 &
  worker=$!
  wait_for 30 is_busy || fail "fio does nothing: $(cat /run/fio)"
  case $((fault % 3)) in
  1)
    # Longer than TCP waits for an answer here.
    ip link set lo down || fail "the link does not go down"
    sleep 6
    ip link set lo up
    cuts=$((cuts + 1))
    ;;
  2)
    kill -KILL "$share_pid"
    wait "$share_pid"
    serve
    exporters=$((exporters + 1))
    ;;
  0)
    kill -KILL "$attach_pid"
    wait "$attach_pid"
    importers=$((importers + 1))
    ;;
  esac
  wait $worker
  ended=$?
  grep -E "verify failed|got pattern" /run/fio && fail "wrong bytes in round $round"
  if [ $((fault % 3)) = 0 ]; then
    wait_for 60 no_disk || fail "the disk stays without its importer"
    wait_for 60 no_port_in_use || fail "the port is still in use"
    attach_disk 1-1
    on_disk $half $round >/run/fio 2>&1 || fail "fio after the importer was killed: $(cat /run/fio)"
  else
    [ $ended = 0 ] || fail "round $round, fault $((fault % 3)): $(cat /run/fio /run/share.log)"
    [ "$(heard)" = "$before" ] || fail "the kernel heard of fault $((fault % 3))"
  fi
  [ $half = 0 ] && round_of_0=$round || round_of_1=$round
  [ -z "$other_round" ] || on_disk $((1 - half)) "$other_round" --verify_only=1 >/run/fio 2>&1 ||
    fail "what round $other_round synced is not there: $(cat /run/fio)"
done
echo "note: $cuts cuts, $exporters exporters and $importers importers killed: nothing that was synced is lost"
detach
wait_for 10 no_disk || fail "the disk stayed after detach"
kill -INT "$share_pid"
wait "$share_pid" || fail "farbus share ended with $?: $(cat /run/share.log)"
in_image 0 "$round_of_0" >/run/fio 2>&1 || fail "the exporter's disk, first half: $(cat /run/fio)"
in_image 1 "$round_of_1" >/run/fio 2>&1 || fail "the exporter's disk, second half: $(cat /run/fio)"
