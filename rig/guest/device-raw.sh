# A raw disk in requests of 4 KiB, one after the other, past the page cache: the guest's own, and through vhci by each importer. The case
# sets RTTS and the amount of data.
measure fill /tmp/disk $((NEAR_KIB * 1024)) || fail "no disk"

# measured WAY RTT KIB: reads and writes the disk that is there.
measured() {
  wait_for 60 has_disk || fail "no disk appeared"
  dev=/dev/$(disk)
  # Wait until the kernel has examined the new disk.
  sleep $((1 + $2 / 50))
  read4k=$(measure read "$dev" 4096 $(($3 * 1024))) || fail "$read4k"
  write4k=$(measure write "$dev" 4096 $(($3 * 1024))) || fail "$write4k"
  echo "far: row $1 $2 $read4k $write4k"
}

mount -t configfs none /sys/kernel/config
insmod /modules/dummy_hcd.ko is_super_speed=0 || fail "dummy_hcd"
gadget=/sys/kernel/config/usb_gadget/stick
mkdir $gadget $gadget/configs/c.1 $gadget/strings/0x409 $gadget/functions/mass_storage.0 || fail "no gadget"
echo 0x1d6b >$gadget/idVendor
echo 0x0104 >$gadget/idProduct
echo /tmp/disk >$gadget/functions/mass_storage.0/lun.0/file
ln -s $gadget/functions/mass_storage.0 $gadget/configs/c.1
echo dummy_udc.0 >$gadget/UDC || fail "the gadget does not bind"
measured local 0 "$NEAR_KIB"
echo >$gadget/UDC
wait_for 10 no_disk || fail "the stick stayed"

share disk:/tmp/disk
# through WAY CLIENT DEVICE OPTIONS: measures at every distance.
through() {
  for rtt in $RTTS; do
    distance "$rtt"
    CLIENT=$2
    ATTACH_OPTIONS=$4
    attach "$3"
    if [ "$rtt" = 0 ]; then kib=$NEAR_KIB; else kib=$FAR_KIB; fi
    measured "$1" "$rtt" "$kib"
    detach
    wait_for 10 no_disk || fail "the disk stayed after detach"
    # The exporter resets the device and offers it again.
    sleep 1
  done
  distance 0
}
through usbip stock 1-1
through session farbus 1-1 "--via kernel --grace 20"
through uas farbus disk "--via uas --cache none --grace 20"
unshare
