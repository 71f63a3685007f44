# With the hook of farbus's package the machine sleeps: the hook detaches devices before, and attaches them again afterwards. The script
# before this one provides the functions, the hook and the daemon.
hook() { env $(cat /run/desk/env) sh /run/farbus-sleep "$1" >/run/hook 2>&1; }
attach_disk disk
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
write_tree /mnt/guest
# A file system loses its disk if the disk is detached.
hook pre && fail "a disk that is mounted was let go of"
grep "is mounted at /mnt" /run/hook || fail "it does not say what is mounted: $(cat /run/hook)"
[ -n "$(ports_in_use)" ] || fail "a disk that is mounted was unplugged"
umount /mnt || fail "umount"
for night in 1 2 3; do
  hook pre || fail "the hook: $(cat /run/hook)"
  no_port_in_use || fail "something is still plugged in"
  nap || fail "it does not sleep: $(cat /run/nap)"
  hook post || fail "the hook: $(cat /run/hook)"
  wait_for 20 has_disk || fail "no disk after it slept: $(cat /run/attach.log)"
  dev=$(disk)
  mount -t ext4 "/dev/$dev" /mnt || fail "mount after it slept"
  (cd /mnt/guest && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the tree: $(grep -v OK /run/check | head -n 5)"
  umount /mnt || fail "umount"
done
dmesg | tail -n 200 | grep -iE "I/O error|EXT4-fs error" && fail "the kernel heard of it"
echo "note: awake with a device attached; asleep $(asleep) times, $night with the hook"
detach
