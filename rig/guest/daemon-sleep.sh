# A machine with something attached through its kernel does not suspend, unless farbus lets go of it. What comes before this script has
# two daemons and the disk. 'freeze' with the test level 'devices' suspends all drivers, waits 5 s and wakes them.
echo devices >/sys/power/pm_test || fail "this kernel tries no suspend"
nap() { echo freeze 2>/run/nap >/sys/power/state; }
attach_disk stick
nap && fail "vhci_hcd has learnt to suspend: then nothing has to be let go of"
wait_for 15 has_disk || fail "the disk went with a suspend that was refused"
dev=$(disk)
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
as desk daemon sleep >/run/sleep 2>&1
[ $? = 3 ] || fail "a mounted disk was let go of: $(cat /run/sleep)"
grep -q "mounted at /mnt" /run/sleep || fail "it does not say what is mounted: $(cat /run/sleep)"
ls /mnt >/dev/null || fail "the mounted disk is gone"
umount /mnt || fail "umount"
as desk daemon sleep || fail "sleep"
no_port_in_use || fail "a port is in use"
as desk status | grep -q asleep || fail "status does not say so: $(as desk status)"
start=$(uptime_now)
nap || fail "it does not suspend: $(cat /run/nap; dmesg | tail -n 8)"
echo "note: suspended for $(elapsed "$start" "$(uptime_now)") s"
as desk daemon wake || fail "wake"
wait_for 20 has_disk || fail "it was not taken again: $(cat /run/attach.log)"
dd if="/dev/$(disk)" of=/dev/null bs=128k count=8 iflag=direct 2>/dev/null || fail "it does not read"
detach
