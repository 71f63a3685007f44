# disk_gadget UDC: makes a disk with a tree of files from the kernel's own gadget, plugged into that controller.
disk_gadget() {
  mount -t configfs none /sys/kernel/config
  write_tree /run/tree
  truncate -s 48M /tmp/disk
  mkfs.ext4 -q -F -d /run/tree /tmp/disk || fail "mkfs"
  gadget=/sys/kernel/config/usb_gadget/g
  mkdir $gadget && cd $gadget || fail "no gadget support"
  echo 0x1d6b >idVendor
  echo 0x0104 >idProduct
  mkdir strings/0x409 configs/c.1 functions/mass_storage.0
  echo self >strings/0x409/product
  echo 1 >functions/mass_storage.0/lun.0/removable
  echo /tmp/disk >functions/mass_storage.0/lun.0/file
  ln -s functions/mass_storage.0 configs/c.1
  echo "$1" >UDC || fail "the gadget does not bind to $1"
  cd /
}

