attach_disk 1-1
[ "$(cat /sys/block/"$dev"/ro)" = 1 ] || fail "the kernel does not see the write protection"
mount -t ext4 -o rw "/dev/$dev" /mnt 2>/dev/null && grep "/mnt ext4 rw" /proc/mounts && fail "mounted read-write"
umount /mnt 2>/dev/null
mount -t ext4 -o ro,noload "/dev/$dev" /mnt || fail "read-only mount"
(cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree: $(grep -v OK /run/check | head -n 5)"
umount /mnt
# Bypasses the kernel's own check, so that the device has to refuse.
blockdev --setrw "/dev/$dev"
if dd if=/dev/zero of="/dev/$dev" bs=4096 count=1 conv=fsync 2>/run/dd; then fail "a write succeeded"; fi
cat /run/dd
wait_for 5 has_disk || fail "the disk is gone after a refused write"
[ "$(dd if="/dev/$dev" bs=4096 count=1 skip=1 2>/dev/null | wc -c)" = 4096 ] || fail "no read after a refused write"
detach
