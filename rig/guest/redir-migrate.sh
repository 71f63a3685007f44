# A load that verifies itself and does not know that it moves: reads past the cache, and files that are written, synced and read back.
attach_disk 1-1
folder=$(dirname "$(usb_interface_of "$dev")")
number() { cat "$folder/devnum"; }
before=$(number)
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
(cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree"
dmesg -c >/dev/null
listen_for enough
say ready
pass=0
is_last=
until [ -n "$is_last" ]; do
  # At least one pass begins after the last move.
  if has_heard enough; then is_last=yes; fi
  pass=$((pass + 1))
  check_pass $pass
done
[ "$(number)" = "$before" ] || fail "the device has another number: it was enumerated anew"
dmesg | grep -i -e reset -e error -e offline -e disconnect && fail "the kernel has seen something"
write_tree /mnt/guest
umount /mnt || fail "umount"
say done "$pass"
detach
