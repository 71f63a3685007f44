#!/bin/busybox sh
# The guest's first and only user process. Kernel messages go to the first serial line; the case uses the
# second. The busybox shell runs its own applets before it searches PATH, so no links are needed.
export PATH=/usr/bin:/usr/sbin:/bin:/sbin
# It finds itself through /proc, so that only one mount has to name it.
/bin/busybox mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
exec 0<>/dev/ttyS1 1>&0 2>&0
stty raw -echo
while read -r module; do
  insmod /modules/"$module".ko || echo "insmod $module failed"
done </rig/modules
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
  ip addr add 10.0.2.15/24 dev eth0
  ip link set eth0 up
fi
# The fixed wait before the kernel examines a stick is for slow hardware.
[ -e /sys/module/usb_storage ] && echo 0 >/sys/module/usb_storage/parameters/delay_use
echo "@rig up $(cut -d ' ' -f 1 /proc/uptime)"
sh /rig/case
echo "@rig exit $?"
# The host ends the machine when it has read that line; a guest whose output is not read ends by itself.
sleep 5
reboot -f
