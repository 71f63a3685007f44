# A disk at several distances: its rates, and the time of a read here and there. The case sets RTTS and the amount of data.
MIB=$((1 << 20))
# First what farbus shares itself, then a stick with the same medium: one of the kernel's own, behind usbfs or
# behind usbip_host.
measure fill /tmp/disk $((DISK_MIB * MIB)) || fail "no disk"
mount -t configfs none /sys/kernel/config
insmod /modules/dummy_hcd.ko is_super_speed=0 || fail "dummy_hcd"
gadget=/sys/kernel/config/usb_gadget/stick
mkdir $gadget $gadget/configs/c.1 $gadget/strings/0x409 $gadget/functions/mass_storage.0 || fail "no gadget"
echo 0x1d6b >$gadget/idVendor
echo 0x0104 >$gadget/idProduct
echo stick >$gadget/strings/0x409/product
echo /tmp/disk >$gadget/functions/mass_storage.0/lun.0/file
ln -s $gadget/functions/mass_storage.0 $gadget/configs/c.1
echo dummy_udc.0 >$gadget/UDC || fail "the gadget does not bind"
wait_for 15 has_disk || fail "no stick"
stick=$(basename "$(near_device 1d6b:0104)")
echo "the stick itself: $(measure read /dev/$(disk) 131072 $((8 * MIB))) KiB/s in order"

# measured WAY RTT: measures the attached disk.
measured() {
  way=$1
  rtt=$2
  wait_for 60 has_disk || fail "no disk appeared"
  dev=/dev/$(disk)
  # Wait until the kernel has examined the new disk (about thirty round trips), and farbus knows the distance.
  sleep $((1 + rtt / 50))
  measure random "$dev" 4096 8 >/run/random || fail "$(cat /run/random)"
  measure random "$dev" 4096 64 >/run/random || fail "$(cat /run/random)"
  read -r median most </run/random
  case $way in usbip | kernel) amount=$((SLOW_MIB * MIB)) ;; *) amount=$((DISK_MIB * MIB)) ;; esac
  read128=$(measure read "$dev" 131072 $amount) || fail "$read128"
  read1m=$(measure read "$dev" 1048576 $amount) || fail "$read1m"
  write128=$(measure write "$dev" 131072 $amount) || fail "$write128"
  write1m=$(measure write "$dev" 1048576 $amount) || fail "$write1m"
  echo "far: row $way $rtt $read128 $read1m $write128 $write1m $median $most"
}

# over_distances WAY CLIENT TARGET: attaches the disk at every distance.
over_distances() {
  for rtt in $RTTS; do
    distance "$rtt"
    CLIENT=$2
    attach "$3"
    measured "$1" "$rtt"
    detach
    wait_for 10 no_disk || fail "the disk stayed after detach"
  done
  distance 0
}
# by_farbus WAY TARGET OPTIONS
by_farbus() {
  ATTACH_OPTIONS=$3
  over_distances "$1" farbus "$2"
}

goes() { case " $WAYS " in *" $1 "*) ;; *) false ;; esac }

share "usb:$stick"
wait_for 10 no_disk || fail "its driver still has the stick"
# Driven by its exporter, and as the device itself.
goes driven && by_farbus driven 1-1 "--via uas --cache writeback --grace 20"
goes kernel && by_farbus kernel 1-1 "--via kernel --grace 20"
unshare

usbipd -D --tcp-port 3241 || fail "usbipd"
wait_for 10 has_disk || fail "the stick was not given back"
usbip bind -b "$stick" || fail "bind"
wait_for 10 no_disk || fail "its driver still has the stick that usbip-host took"
PORT=3241
goes usbip && over_distances usbip stock "$stick"
usbip unbind -b "$stick" || fail "unbind"
wait_for 10 has_disk || fail "the stick was not given back"
echo >$gadget/UDC
wait_for 10 no_disk || fail "the stick stayed"

PORT=3240
share disk:/tmp/disk
goes uas && by_farbus uas disk "--via uas --cache writeback --grace 20"
unshare
