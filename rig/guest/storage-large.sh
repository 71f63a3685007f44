attach_disk 1-1
[ "$(cat /sys/block/"$dev"/size)" = "$SECTORS" ] || fail "size is $(cat /sys/block/"$dev"/size) sectors"
# Above 2 TiB other commands are needed; here the highest 32 bits of a byte offset have to arrive.
printf 'the very end' | dd of="/dev/$dev" bs=512 seek=$((SECTORS - 1)) conv=sync,fsync 2>/dev/null || fail "write"
echo 3 >/proc/sys/vm/drop_caches
[ "$(dd if="/dev/$dev" bs=512 skip=$((SECTORS - 1)) count=1 2>/dev/null | head -c 12)" = "the very end" ] ||
  fail "the last sector reads back wrong"
detach
