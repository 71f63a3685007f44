# Words that the guest scripts of all cases use. The rig puts CLIENT, EXPORTER and PORT before it.

# Tells the host that a point is reached; waits for the host's word.
say() { echo "@rig say $*"; }
await() { read -r word && [ "$word" = "$1" ] || fail "expected the host to say $1, it said: $word"; }

fail() {
  echo "FAIL: $*"
  [ -s /run/attach.log ] && sed 's/^/farbus: /' /run/attach.log
  dmesg | tail -n 25 | sed 's/^/kernel: /'
  exit 1
}

# wait_for SECONDS COMMAND...: until the command succeeds.
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

# attach DEVICE: by the client that this case is about.
attach() {
  case $CLIENT in
  stock) usbip --tcp-port "$PORT" attach -r "$EXPORTER" -b "$1" || fail "usbip attach $1" ;;
  farbus)
    farbus attach "$EXPORTER:$PORT/$1" --via kernel >/run/attach.log 2>&1 &
    attach_pid=$!
    ;;
  esac
}

ports_in_use() { cat /sys/devices/platform/vhci_hcd.*/status* | awk '$3 == "006" { print $2 }'; }
no_port_in_use() { [ -z "$(ports_in_use)" ]; }

# Gives the device back, and insists that the client ends well and the port falls free.
detach() {
  case $CLIENT in
  stock) for port in $(ports_in_use); do usbip detach -p "$port" || fail "usbip detach $port"; done ;;
  farbus)
    farbus detach || fail "farbus detach"
    wait "$attach_pid" || fail "farbus attach ended with $? after farbus detach"
    ;;
  esac
  wait_for 5 no_port_in_use || fail "the port is still in use after detach"
}

# The name of the only SCSI disk, once it is there with a size.
disk() { ls /sys/block | grep '^sd' | head -n 1; }
has_disk() { d=$(disk) && [ -n "$d" ] && [ -b "/dev/$d" ] && [ "$(cat /sys/block/"$d"/size)" -gt 0 ]; }
no_disk() { [ -z "$(disk)" ]; }

attach_disk() {
  attach "$1"
  wait_for 15 has_disk || fail "no disk appeared"
  dev=$(disk)
}

# The USB device below vhci with this vendor and product, as its folder in sysfs.
usb_device() {
  for folder in /sys/bus/usb/devices/*-*; do
    [ "$(cat "$folder/idVendor" 2>/dev/null):$(cat "$folder/idProduct" 2>/dev/null)" = "$1" ] && echo "$folder"
  done | grep .
}

# A folder's node for programs that want the device itself.
usb_node() { printf '/dev/bus/usb/%03d/%03d' "$(cat "$1/busnum")" "$(cat "$1/devnum")"; }
