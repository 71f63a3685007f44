# Devices made by the exporter's own kernel: one gadget each, each on an emulated controller of its own.

# gadget NAME VENDOR PRODUCT FUNCTION: leaves the shell in the function's folder.
gadget() {
  folder=/sys/kernel/config/usb_gadget/$1
  mkdir "$folder" "$folder/configs/c.1" "$folder/strings/0x409" "$folder/functions/$4" || fail "no gadget $1"
  echo "$2" >"$folder/idVendor"
  echo "$3" >"$folder/idProduct"
  echo "rig-$1" >"$folder/strings/0x409/serialnumber"
  echo "$1" >"$folder/strings/0x409/product"
  cd "$folder/functions/$4" || fail "no function $4"
}

# plug NUMBER: plugs the gadget whose function this folder is into controller NUMBER.
plug() {
  folder=$(dirname "$(dirname "$PWD")")
  ln -s "$PWD" "$folder/configs/c.1/" || fail "configuration of $folder"
  echo "dummy_udc.$1" >"$folder/UDC" || fail "$folder does not bind"
  cd /
}

make_gadgets() {
  mount -t configfs none /sys/kernel/config
  insmod /modules/dummy_hcd.ko num=7 || fail "dummy_hcd"
  write_tree /run/tree
  truncate -s 48M /tmp/disk
  mkfs.ext4 -q -F -d /run/tree /tmp/disk || fail "mkfs"

  gadget disk 0x1d6b 0x0104 mass_storage.0
  echo 1 >lun.0/removable
  echo /tmp/disk >lun.0/file
  plug 0
  gadget acm 0x0525 0xa4a7 acm.0
  plug 1
  gadget ncm 0x1d6b 0x0107 ncm.0
  plug 2
  # A keyboard, as Documentation/usb/gadget-testing.rst has it.
  gadget hid 0x1d6b 0x0105 hid.0
  echo 1 >protocol
  echo 1 >subclass
  echo 8 >report_length
  printf '\x05\x01\x09\x06\xa1\x01\x05\x07\x19\xe0\x29\xe7\x15\x00\x25\x01\x75\x01\x95\x08\x81\x02\x95\x01\x75\x08\x81\x03\x95\x05\x75\x01\x05\x08\x19\x01\x29\x05\x91\x02\x95\x01\x75\x03\x91\x03\x95\x06\x75\x08\x15\x00\x25\x65\x05\x07\x19\x00\x29\x65\x81\x00\xc0' >report_desc
  plug 3
  gadget printer 0x0525 0xa4a8 printer.0
  plug 4
  gadget midi 0x1d6b 0x0106 midi.0
  plug 5
  gadget zero 0x0525 0xa4a0 SourceSink.0
  plug 6
}

# The gadget's end of the serial line answers in capitals.
answer_serial() {
  wait_for 5 [ -c /dev/ttyGS0 ] || fail "no /dev/ttyGS0"
  stty -F /dev/ttyGS0 raw -echo
  (while :; do awk '{ print toupper($0); fflush() }' </dev/ttyGS0 >/dev/ttyGS0; done) 2>/dev/null &
}

# The gadget's end of the network is 10.0.5.1.
answer_pings() {
  name=$(cat /sys/kernel/config/usb_gadget/ncm/functions/ncm.0/ifname)
  ip addr add 10.0.5.1/24 dev "$name" && ip link set "$name" up || fail "ip: $(ip link)"
}

# press CODE...: each key, by its HID usage in octal, down and up.
press() {
  for code in "$@"; do
    printf "\\0\\0\\$code\\0\\0\\0\\0\\0" >/dev/hidg0 || fail "the keyboard does not take a report"
    printf '\0\0\0\0\0\0\0\0' >/dev/hidg0 || fail "the keyboard does not take a report"
  done
}

# Reads the printer's output until no more arrives.
receive_page() {
  cat /dev/g_printer0 >/run/page &
  printer=$!
  say ready
  await printed
  size() { stat -c %s /run/page; }
  still() { before=$(size) && sleep 0.7 && [ "$before" = "$(size)" ] && [ "$before" -gt 0 ]; }
  within 15 still || fail "no page came out"
  kill -9 $printer
  echo "sha256: $(sha256sum </run/page)"
}

# The gadget's MIDI port returns what it receives, so many bytes.
answer_midi() {
  port=$(ls /dev/snd/midiC*D0 | head -n 1)
  [ -c "$port" ] || fail "no MIDI port: $(ls /dev/snd)"
  (dd if="$port" of=/run/midi bs=1 count="$1" 2>/dev/null && cat /run/midi >"$port") &
}

# Checks that the file behind the gadget has what the other machine wrote.
check_disk() {
  e2fsck -f -n /tmp/disk >/run/check 2>&1 || fail "fsck: $(cat /run/check)"
  mount -t ext4 -o ro,loop /tmp/disk /mnt || fail "mount"
  (cd /mnt/guest && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the tree: $(grep -v OK /run/check | head -n 5)"
  umount /mnt
  wc -l </run/check
}
