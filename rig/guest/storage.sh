attach_disk "${DEVICE:-1-1}"
driver=$(basename "$(readlink "$(usb_interface_of "$dev")/driver")")
[ "$driver" = "${DRIVER:-usb-storage}" ] || fail "driver is $driver"
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
grep "^/dev/$dev /mnt ext4 rw" /proc/mounts || fail "not read-write"

start=$(uptime_now)
(cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree: $(grep -v OK /run/check | head -n 5)"
read_done=$(uptime_now)
write_tree /mnt/guest
rm -r /mnt/many || fail "rm"
umount /mnt || fail "umount"
echo "note: host's tree checked in $(elapsed "$start" "$read_done") s, own written in $(elapsed "$read_done" "$(uptime_now)") s"

# The data is still there after the file system was unmounted and the page cache dropped.
mount -t ext4 "/dev/$dev" /mnt || fail "second mount"
(cd /mnt/guest && sha256sum -c MANIFEST >/run/check 2>&1) || fail "own tree: $(grep -v OK /run/check | head -n 5)"
umount /mnt

# Not every device can eject its medium.
if [ -z "$KEEPS_MEDIUM" ]; then
  /usr/bin/eject "/dev/$dev" || fail "eject"
  gone_empty() { [ "$(blockdev --getsize64 "/dev/$dev" 2>/dev/null || echo 0)" = 0 ]; }
  wait_for 5 gone_empty || fail "the medium is still there after eject"
fi
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
