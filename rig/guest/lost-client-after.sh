attach_disk 1-1
sum=$(sha256sum <"/dev/$dev")
[ "${sum%% *}" = "$SUM" ] || fail "what was read is not what the disk holds"
detach
