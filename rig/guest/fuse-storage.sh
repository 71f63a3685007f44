rm -f /run/attach.log
farbus attach "$EXPORTER:$PORT/$DEVICE" --via fuse --at /run/far >/run/attach.log 2>&1 &
attach_pid=$!
has_file() { [ -s /run/far/disk.img ]; }
wait_for 20 has_file || fail "no file appeared"
refused 3 refused
# QEMU's stick loses the status of a long read that farbus requests early: a delay of half a minute, once.
mount -t ext4 -o loop /run/far/disk.img /mnt || fail "mount"
start=$(uptime_now)
(cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree: $(grep -v OK /run/check | head -n 5)"
read_done=$(uptime_now)
mkdir /mnt/guest || fail "mkdir"
for size in 0 1 511 4097 1000000; do head -c $size /dev/urandom >/mnt/guest/$size || fail "write $size bytes"; done
(cd /mnt/guest && sha256sum 0 1 511 4097 1000000 >/run/manifest && cp /run/manifest MANIFEST) || fail "manifest"
umount /mnt || fail "umount"
echo "note: host's tree checked in $(elapsed "$start" "$read_done") s, five files written in $(elapsed "$read_done" "$(uptime_now)") s"
detach
