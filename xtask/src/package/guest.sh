# In a booted Debian with systemd. The host reads the lines that begin with "@check".
set -eu
export LC_ALL=C HOME=/root
say() { echo "@check $*"; }
trap 'code=$?; [ $code = 0 ] || { cat /root/attach.log; systemctl --no-pager status farbus farbus-confined; journalctl --no-pager -n 60; }; say "exit $code"; poweroff -ff' EXIT
set -x
seconds() { cut -d. -f1 /proc/uptime; }
# Waits for a condition, 60 s at most.
until_true() {
    since=$(seconds)
    set +x
    until "$@" >/dev/null 2>&1; do
        [ $(($(seconds) - since)) -lt 60 ] || { echo "not in 60 s: $*"; exit 1; }
        sleep 0.2
    done
    set -x
}
modprobe vhci-hcd
truncate -s 64M /srv/disk.img
mkfs.ext4 -q /srv/disk.img

# One command, and a device is shared and attached.
begin=$(seconds)
dpkg -i /root/farbus.deb
systemctl is-active farbus
printf '[[share]]\nwhat = "disk:/srv/disk.img"\nname = "disk"\n' >>/etc/farbus/farbus.toml
systemctl reload farbus
farbus attach disk --via kernel >/root/attach.log 2>&1 &
attach=$!
until_true test -b /dev/sda
mount /dev/sda /mnt
echo before >/mnt/file
sync
took=$(($(seconds) - begin))
say "from dpkg to a mounted disk: $took s"
[ $took -lt 60 ]

# An upgrade keeps what is shared and attached.
pid=$(systemctl show --property MainPID --value farbus)
dpkg -i /root/later.deb
systemctl is-active farbus
until_true sh -c "[ \$(systemctl show --property MainPID --value farbus) != $pid ]"
echo 3 >/proc/sys/vm/drop_caches
[ "$(cat /mnt/file)" = before ]
echo after >>/mnt/file
sync
kill -0 $attach
umount /mnt
farbus detach
wait $attach
mount -o loop,ro /srv/disk.img /mnt
[ "$(cat /mnt/file)" = "before
after" ]
umount /mnt

# The unit without rights shares files of its user's, which a drop-in lets it write, and announces itself.
chown farbus /srv/disk.img
mkdir /etc/systemd/system/farbus-confined.service.d
printf '[Service]\nReadWritePaths=/srv\n' >/etc/systemd/system/farbus-confined.service.d/images.conf
systemctl daemon-reload
systemctl start farbus-confined
systemctl is-active farbus-confined
if systemctl is-active farbus; then exit 1; fi
as_farbus() { runuser -u farbus -- env XDG_RUNTIME_DIR=/run/farbus-confined "$@"; }
until_true sh -c 'runuser -u farbus -- env XDG_RUNTIME_DIR=/run/farbus-confined farbus status --json | grep -q "\"available\""'
as_farbus farbus attach disk --via fuse --at /run/farbus-confined/at >/root/attach.log 2>&1 &
attach=$!
until_true runuser -u farbus -- test -f /run/farbus-confined/at/disk.img
runuser -u farbus -- cmp /srv/disk.img /run/farbus-confined/at/disk.img
as_farbus farbus detach
wait $attach
journalctl --no-pager -u farbus-confined
if journalctl --no-pager -u farbus-confined | grep -q 'cannot apply'; then exit 1; fi
say "farbus-confined shared a disk"
say "$(systemd-analyze security --no-pager farbus-confined | tail -n 1)"
systemctl stop farbus-confined
rm -r /etc/systemd/system/farbus-confined.service.d

dpkg --purge farbus
left=$(find / -xdev -name '*farbus*' -not -path '/proc/*' -not -path '/root/*' -not -path '/var/log/*' -not -path '/sys/*')
say "left: [$left]"
[ -z "$left" ]
getent passwd farbus
