rm -f /run/attach.log
farbus attach "$EXPORTER:$PORT/disk" --via nbd --socket /run/disk.sock >/run/attach.log 2>&1 &
attach_pid=$!
wait_for 20 grep -q "attached as nbd+unix" /run/attach.log || fail "attach"
nbd-client -unix /run/disk.sock /dev/nbd0 -C 2 || fail "nbd-client"
has_size() { [ "$(cat /sys/block/nbd0/size)" = $((64 * 2048)) ]; }
wait_for 5 has_size || fail "size is $(cat /sys/block/nbd0/size)"
for fact in discard_max_bytes fua write_cache; do echo "$fact $(cat /sys/block/nbd0/queue/$fact)"; done
[ "$(cat /sys/block/nbd0/queue/fua)" = 1 ] || fail "the kernel does not know that FUA is known"
mount -t ext4 -o discard /dev/nbd0 /mnt || fail "mount"

start=$(uptime_now)
(cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree: $(grep -v OK /run/check | head -n 5)"
read_done=$(uptime_now)
write_tree /mnt/guest
rm -r /mnt/many || fail "rm"
umount /mnt || fail "umount"
echo "note: host's tree checked in $(elapsed "$start" "$read_done") s, own written in $(elapsed "$read_done" "$(uptime_now)") s"

# The data survives the end of the connections, and the file system is intact.
nbd-client -d /dev/nbd0 || fail "disconnect"
no_size() { [ "$(cat /sys/block/nbd0/size)" = 0 ]; }
wait_for 5 no_size || fail "the disk stayed after it was let go"
nbd-client -unix /run/disk.sock /dev/nbd0 || fail "nbd-client again"
wait_for 5 has_size || fail "size is $(cat /sys/block/nbd0/size) when connected again"
e2fsck -f -n /dev/nbd0 >/run/check 2>&1 || fail "fsck: $(cat /run/check)"
mount -t ext4 /dev/nbd0 /mnt || fail "second mount"
(cd /mnt/guest && sha256sum -c MANIFEST >/run/check 2>&1) || fail "own tree: $(grep -v OK /run/check | head -n 5)"
umount /mnt
nbd-client -d /dev/nbd0 || fail "second disconnect"
wait_for 5 no_size || fail "the disk stayed after it was let go again"
dmesg | grep -i "nbd0.*error" && fail "the kernel saw an error"
farbus detach || fail "farbus detach"
wait "$attach_pid" || fail "farbus attach ended with $?"
[ ! -e /run/disk.sock ] || fail "the socket stayed"
