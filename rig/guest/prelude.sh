# Functions for the guest scripts of all cases. The rig sets CLIENT, EXPORTER and PORT before it.

# Tells the host that a point is reached, and waits for the host's answer.
say() { echo "@rig say $*"; }
await() { read -r word && [ "$word" = "$1" ] || fail "expected the host to say $1, it said: $word"; }

# From here on the host's answer creates a file, so that a load can check whether to stop.
listen_for() {
  word=$1
  (
    until [ "$said" = "$word" ]; do read -r said; done
    : >"/run/said-$word"
  ) </dev/ttyS1 &
}
# check_pass NUMBER: one pass of a load on /mnt that verifies itself: a file that is written, synced and read back past the cache, and the
# host's tree.
check_pass() {
  head -c 300000 /dev/urandom >/run/written
  cp /run/written /mnt/written && sync || fail "write in pass $1"
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/written /mnt/written || fail "what was written in pass $1 is not what is read"
  (cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree in pass $1: $(grep -v OK /run/check | head -n 5)"
}

has_heard() { [ -e "/run/said-$1" ]; }

fail() {
  echo "FAIL: $*"
  [ -s /run/attach.log ] && sed 's/^/farbus: /' /run/attach.log
  dmesg | tail -n 25 | sed 's/^/kernel: /'
  exit 1
}

# wait_for SECONDS COMMAND...: waits until the command succeeds.
wait_for() {
  patience=$(($1 * 20))
  shift
  until "$@" >/dev/null 2>&1; do
    patience=$((patience - 1))
    [ $patience -gt 0 ] || return 1
    sleep 0.05
  done
}

uptime_now() { cut -d ' ' -f 1 /proc/uptime; }

# attach DEVICE: attaches with the client that this case tests.
attach() {
  case $CLIENT in
  stock) usbip --tcp-port "$PORT" attach -r "$EXPORTER" -b "$1" || fail "usbip attach $1" ;;
  farbus)
    rm -f /run/attach.log
    farbus attach "$EXPORTER:$PORT/$1" ${ATTACH_OPTIONS:---via kernel} >/run/attach.log 2>&1 &
    attach_pid=$!
    ;;
  # The machine has the device plugged in from the start.
  redir) ;;
  esac
}

ports_in_use() { cat /sys/devices/platform/vhci_hcd.*/status* | awk '$3 == "006" { print $2 }'; }
no_port_in_use() { [ -z "$(ports_in_use)" ]; }

# Detaches the device, and checks that the client ends well and the port becomes free.
detach() {
  case $CLIENT in
  stock) for port in $(ports_in_use); do usbip detach -p "$port" || fail "usbip detach $port"; done ;;
  farbus)
    farbus detach || fail "farbus detach"
    wait "$attach_pid" || fail "farbus attach ended with $? after farbus detach"
    ;;
  redir)
    say detach
    return
    ;;
  esac
  wait_for 5 no_port_in_use || fail "the port is still in use after detach"
}

# The shell that is to become a program makes its log: until then another one may still lie there, and what is waited for
# stands in it. So each log is removed before its program starts.

# share_usb ID: takes the guest's own device of that vendor and product from its drivers and offers it as 1-1.
share_usb() {
  shared=$(basename "$(near_device "$1")") || fail "no device $1 in the guest"
  farbus share --list || fail "share --list"
  rm -f /run/share.log
  farbus share "usb:$1" --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
  share_pid=$!
  wait_for 20 grep -q "listening on" /run/share.log || fail "share: $(cat /run/share.log)"
  cat /run/share.log
}

# Ends sharing, and checks that the named driver has the device again.
unshare_usb() {
  kill -INT "$share_pid"
  wait "$share_pid" || fail "farbus share ended with $?: $(cat /run/share.log)"
  has_driver() { [ "$(basename "$(readlink "/sys/bus/usb/devices/$shared:1.0/driver")")" = "$1" ]; }
  wait_for 10 has_driver "$1" || fail "the device was not given back to $1: $(cat /run/share.log)"
}

# The name of the only SCSI disk, when it exists and has a size.
disk() { ls /sys/block | grep '^sd' | head -n 1; }
has_disk() { d=$(disk) && [ -n "$d" ] && [ -b "/dev/$d" ] && [ "$(cat /sys/block/"$d"/size)" -gt 0 ]; }
no_disk() { [ -z "$(disk)" ]; }

attach_disk() {
  attach "$1"
  wait_for 15 has_disk || fail "no disk appeared"
  dev=$(disk)
}

# The folder in sysfs of the USB device below vhci with this vendor and product.
usb_device() {
  for folder in /sys/bus/usb/devices/*-*; do
    [ "$(cat "$folder/idVendor" 2>/dev/null):$(cat "$folder/idProduct" 2>/dev/null)" = "$1" ] && echo "$folder"
  done | grep .
}

# Those that came through vhci, and the guest's own.
far_device() { for folder in $(usb_device "$1"); do case $(realpath "$folder") in *vhci*) echo "$folder" ;; esac done | grep .; }
near_device() { for folder in $(usb_device "$1"); do case $(realpath "$folder") in *vhci*) ;; *) echo "$folder" ;; esac done | grep .; }

# The device node for a folder in sysfs, for programs that open the device itself.
usb_node() { printf '/dev/bus/usb/%03d/%03d' "$(cat "$1/busnum")" "$(cat "$1/devnum")"; }

# The USB interface of a SCSI disk.
usb_interface_of() {
  folder=$(realpath "/sys/block/$1/device")
  until [ -e "$folder/bInterfaceNumber" ]; do
    folder=$(dirname "$folder")
    [ "$folder" = / ] && fail "$1 is not below a USB interface"
  done
  echo "$folder"
}

# write_tree FOLDER: writes files of many sizes with a manifest that the host checks.
write_tree() {
  mkdir -p "$1/a/b/c" "$1/many" || fail "mkdir on the disk"
  index=0
  for size in 0 1 511 512 4095 4096 4097 65536 1000000 3145735; do
    head -c $size /dev/urandom >"$1/a/b/c/size-$size" || fail "write $size bytes"
    while [ $index -lt $((${#size} * 5)) ]; do
      head -c $((index * 131)) /dev/urandom >"$1/many/$index" || fail "write a small file"
      index=$((index + 1))
    done
  done
  (cd "$1" && find . -type f | sort | xargs sha256sum >/run/manifest) || fail "checksums"
  cp /run/manifest "$1/MANIFEST" && sync || fail "manifest"
}

elapsed() { awk "BEGIN { printf \"%.2f\", $2 - $1 }"; }

# test_all DEVICE: one pass of testusb. Its defaults (1000 rounds of each test) are for hardware; here a round
# trip costs up to a millisecond of emulation. The parameters of each test:
test_all() {
  # 0 to 8, 17 to 20: single and scattered bulk, fixed and varied, aligned and not. -v is a multiple of the
  # packet size because 4 and 8 would otherwise ask for a short packet that never comes.
  for number in 0 1 2 3 4 5 6 7 8 17 18 19 20 27 28 29; do
    testusb -D "$1" -t $number -c 32 -s 2048 -g 8 -v 512
  done
  # Control: standard requests, sixteen queued, vendor write and read back.
  testusb -D "$1" -t 9 -c 8
  testusb -D "$1" -t 10 -c 8 -g 16
  for number in 14 21; do testusb -D "$1" -t $number -c 16 -s 512 -v 33; done
  # Unlink of one and of queued transfers; halt set and cleared.
  for number in 11 12 13 24; do testusb -D "$1" -t $number -c 32 -s 2048 -g 8; done
  # Isochronous and interrupt.
  for number in 15 16 22 23; do testusb -D "$1" -t $number -c 8 -s 2048 -g 4; done
  for number in 25 26; do testusb -D "$1" -t $number -c 16 -s 512; done
}
