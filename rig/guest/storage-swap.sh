# A disk that is written while it moves to each of DESTINATIONS in turn; its first exporter is gone after the first move.
attach_disk "${DEVICE:-1-1}"
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
number=$(cat "$(dirname "$(usb_interface_of "$dev")")/devnum")
load() {
  pass=0
  is_last=
  until [ -n "$is_last" ]; do
    # At least one pass begins after the exporter has gone.
    if has_heard gone; then is_last=yes; fi
    pass=$((pass + 1))
    check_pass $pass
  done
  echo "$pass" >/run/passes
}
load &
loaded=$!
times=
for destination in $DESTINATIONS; do
  start=$(uptime_now)
  farbus swap "$EXPORTER:$PORT/${DEVICE:-1-1}" --to "$destination" >/run/swap.log 2>&1 || fail "swap: $(cat /run/swap.log)"
  times="${times:+$times, }$(elapsed "$start" "$(uptime_now)")"
  [ ! -e /run/passes ] || fail "the load has ended: $(cat /run/check)"
  say moved
  await continue
done
listen_for gone
say swapped
wait "$loaded" || fail "the load"
write_tree /mnt/guest
umount /mnt || fail "umount"
[ "$(cat "$(dirname "$(usb_interface_of "$dev")")/devnum")" = "$number" ] || fail "it is another device"
dmesg | grep -E 'reset (high|super)|I/O error|EXT4-fs error' && fail "the kernel complains"
echo "note: moved in $times s while it was written; $(cat /run/passes) passes of the load"
detach
