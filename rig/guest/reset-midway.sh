attach_disk 1-1
echo 1 >/sys/block/"$dev"/device/timeout
for pass in 1 2 3; do
  echo 3 >/proc/sys/vm/drop_caches
  say reading
  sum=$(sha256sum <"/dev/$dev")
  [ "${sum%% *}" = "$SUM" ] || fail "pass $pass: what was read is not what the disk holds"
done
# The kernel's numbers are hexadecimal.
echo "timeouts: $(($(cat /sys/block/"$dev"/device/iotmo_cnt)))"
[ "$(disk)" = "$dev" ] || fail "the disk has another name now: the device was enumerated anew"
detach
