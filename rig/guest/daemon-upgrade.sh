# The importer's daemon is restarted in the middle of writing and reading, each time as the program that is there now; nobody above
# hears of it. What comes before this script has two daemons and the disk.
attach_disk "${DEVICE:-1-1}"
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
number=$(cat "$(far_device 46f4:0001)/devnum")
# The port in use, but for the number of a descriptor in a process that is gone.
port() { awk '$3 == 6 { print $1, $2, $4, $5, $7 }' /sys/devices/platform/vhci_hcd.0/status*; }
plugged=$(port)
[ -n "$plugged" ] || fail "no port is in use: $(cat /sys/devices/platform/vhci_hcd.0/status)"
dmesg | tail -n 1 >/run/before
daemon=$attach_pid
restarts=0
still=
upgrade() {
  before=$daemon
  as desk daemon restart --json >/run/restart || fail "restart: $(cat /run/restart /run/attach.log)"
  daemon=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /run/restart)
  grep -q '"kept":\["lab3' /run/restart || fail "nothing was passed on: $(cat /run/restart /run/attach.log)"
  gone() { ! grep -q farbus "/proc/$before/cmdline" 2>/dev/null; }
  wait_for 20 gone || fail "the process before this one stays"
  restarts=$((restarts + 1))
  still="$still $(sed -n 's/.*"still_ms":\([0-9]*\).*/\1/p' /run/restart)"
}
for pass in $(seq $((3 * TIMES))); do
  write_tree "/mnt/guest-$pass" &
  worker=$!
  sleep 0.3
  upgrade
  wait $worker || fail "writing over a restart"
  (
    echo 3 >/proc/sys/vm/drop_caches
    cd "/mnt/guest-$pass" && sha256sum -c MANIFEST >/run/check 2>&1
  ) &
  worker=$!
  sleep 0.1
  upgrade
  wait $worker || fail "reading over a restart: $(grep -v OK /run/check | head -n 5)"
done
# One that does not come up changes nothing, and asking by signal is asking as well.
kill -USR2 "$daemon" || fail "signal"
gone() { ! grep -q farbus "/proc/$daemon/cmdline" 2>/dev/null; }
wait_for 20 gone || fail "a signal restarts nothing: $(cat /run/attach.log)"
restarts=$((restarts + 1))
(cd /mnt/guest-1 && sha256sum -c MANIFEST >/run/check 2>&1) || fail "after a signal: $(grep -v OK /run/check | head -n 5)"
umount /mnt || fail "umount"
[ "$(cat "$(far_device 46f4:0001)/devnum")" = "$number" ] || fail "the device is another one"
[ "$(port)" = "$plugged" ] || fail "the port is another one: $(port), not $plugged"
dmesg | sed "1,/$(tail -c 40 /run/before | sed 's/[][\/.*^$]/./g')/d" >/run/kernel
grep -iE "error|reset|disconnect|timed out|abort|vhci" /run/kernel && fail "the kernel heard of it"
grep -E '^CapEff:\s*0+$' /proc/"$(as desk status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)"/status ||
  fail "it has capabilities"
echo "note: $restarts restarts, $(grep -c "linked again" /run/attach.log) new links; still for$still ms until let go of"
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
