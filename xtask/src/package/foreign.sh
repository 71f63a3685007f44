#!/bin/busybox sh
# The first process of a guest of another architecture. The host reads the lines that begin with "@check".
set -eu
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/root XDG_RUNTIME_DIR=/run LC_ALL=C
say() { echo "@check $*"; }
trap 'code=$?; [ $code = 0 ] || { cat /attach.log; dmesg | tail -n 30; }; say "exit $code"; poweroff -f' EXIT
# Waits for a condition, 120 s at most: the processor is made of code.
until_true() {
    left=600
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ $left -gt 0 ] || { echo "not in 120 s: $*"; exit 1; }
        sleep 0.2
    done
}
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
echo 3 >/proc/sys/kernel/printk
while read -r module; do insmod "$module"; done </modules
ip link set lo up
ip link set eth0 up
ip address add 10.0.2.15/24 dev eth0
say "$(uname -m), $(farbus --version)"
target=$(cat /target)

# A disk of a machine of another architecture, in this kernel.
farbus attach "$target" --via kernel >/attach.log 2>&1 &
attach=$!
until_true test -b /dev/sda
say "sectors: $(cat /sys/block/sda/size)"
say "read: $(dd if=/dev/sda bs=4096 skip=5 count=1 2>/dev/null | sha256sum | cut -d' ' -f1)"
yes written | dd of=/dev/sda bs=4096 seek=7 count=1 iflag=fullblock conv=fsync 2>/dev/null
farbus detach
wait $attach
until_true test ! -b /dev/sda
# And what this machine shares with itself, as a program's file descriptor would have it.
farbus demo
say "demo passed"
