# Exporter and importer on one stock system, joined by lo.
truncate -s 64M /tmp/disk
mkfs.ext4 -q -F /tmp/disk || fail "mkfs"
rm -f /run/share.log
farbus share disk:/tmp/disk --listen 127.0.0.1:$PORT >/run/share.log 2>&1 &
share=$!
listening() { grep "listening on" /run/share.log; }
wait_for 10 listening || fail "farbus share: $(cat /run/share.log)"
attach_disk disk
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
start=$(uptime_now)
write_tree /mnt/guest
umount /mnt || fail "umount"
echo "note: tree written in $(elapsed "$start" "$(uptime_now)") s"
farbus status --json || fail "farbus status"
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
e2fsck -f -n /tmp/disk >/run/check 2>&1 || fail "fsck: $(cat /run/check)"
kill -INT $share
wait $share || fail "farbus share ended with $? after Ctrl-C: $(cat /run/share.log)"
