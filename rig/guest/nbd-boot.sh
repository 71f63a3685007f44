# The root file system is on a remote disk that QEMU has by NBD: everything from here on is loaded from there.
wait_for 15 test -b /dev/vda || fail "no disk appeared"
mount -t ext4 /dev/vda /mnt || fail "mount"
mkdir -p /mnt/proc /mnt/dev /mnt/run /mnt/guest && mount -t proc proc /mnt/proc && mount -t devtmpfs dev /mnt/dev || fail "its folders"
start=$(uptime_now)
chroot /mnt /bin/busybox sh -c '
  PATH=/bin
  /bin/busybox --install -s /bin
  cd /tree && sha256sum -c MANIFEST >/run/check || exit 1
  head -c 3000000 /dev/urandom >/guest/noise && cd /guest && sha256sum noise >SUM && sync
  echo 3 >/proc/sys/vm/drop_caches
  sha256sum -c SUM' || fail "what runs from the disk failed: $(grep -v OK /mnt/run/check)"
say ran "$(elapsed "$start" "$(uptime_now)")"
umount /mnt/proc /mnt/dev && umount /mnt || fail "umount"
if dmesg | grep -i 'I/O error'; then fail "the kernel has seen an error"; fi
