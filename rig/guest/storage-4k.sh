attach_disk 1-1
for file in logical_block_size physical_block_size; do
  [ "$(cat /sys/block/"$dev"/queue/$file)" = 4096 ] || fail "$file is $(cat /sys/block/"$dev"/queue/$file)"
done
[ "$(cat /sys/block/"$dev"/size)" = $((64 * 2048)) ] || fail "size is $(cat /sys/block/"$dev"/size)"
mkfs.ext4 -q -F "/dev/$dev" || fail "mkfs"
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
start=$(uptime_now)
write_tree /mnt/guest
umount /mnt || fail "umount"
echo "note: tree written in $(elapsed "$start" "$(uptime_now)") s"
e2fsck -f -n "/dev/$dev" >/run/check 2>&1 || fail "fsck: $(cat /run/check)"
detach
