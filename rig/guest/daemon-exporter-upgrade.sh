# The exporter's daemon is restarted in the middle of writing and reading: the stick it took stays taken, nobody above hears of it, and
# neither does the stick. What comes before this script has two daemons and the disk.
attach_disk stick
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
numbers() { cat "$(far_device 46f4:0001)/devnum" "$(near_device 46f4:0001)/devnum"; }
before=$(numbers)
dmesg | tail -n 1 >/run/before
daemon=$share_pid
restarts=0
still=
upgrade() {
  old=$daemon
  as lab3 daemon restart --json >/run/restart || fail "restart: $(cat /run/restart /run/share.log)"
  daemon=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /run/restart)
  grep -q '"sessions":1' /run/restart || fail "no session was passed on: $(cat /run/restart /run/share.log)"
  gone() { ! grep -q farbus "/proc/$old/cmdline" 2>/dev/null; }
  wait_for 20 gone || fail "the process before this one stays: $(cat /run/share.log)"
  restarts=$((restarts + 1))
  still="$still $(sed -n 's/.*"still_ms":\([0-9]*\).*/\1/p' /run/restart)"
  [ "$(basename "$(readlink "/sys/bus/usb/devices/$shared:1.0/driver")")" = usbfs ] || fail "the stick is not farbus's any more"
}
for pass in $(seq $((2 * TIMES))); do
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
umount /mnt || fail "umount"
[ "$(numbers)" = "$before" ] || fail "a device is another one"
grep -E "does not go on|begins anew|started anew" /run/share.log /run/attach.log && fail "its session did not go on"
dmesg | sed "1,/$(tail -c 40 /run/before | sed 's/[][\/.*^$]/./g')/d" >/run/kernel
grep -iE "error|reset|disconnect|timed out|abort|vhci|detected" /run/kernel && fail "the kernel heard of it"
echo "note: $restarts restarts, $(grep -c "linked again" /run/attach.log) new links; still for$still ms until let go of"
detach
# What the last process inherited it gives back as well as what it took.
kill -TERM "$daemon" || fail "it has ended"
has_driver() { [ "$(basename "$(readlink "/sys/bus/usb/devices/$shared:1.0/driver")")" = usb-storage ]; }
wait_for 20 has_driver || fail "the stick's driver does not have it again: $(cat /run/share.log)"
