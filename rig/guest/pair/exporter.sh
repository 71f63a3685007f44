# The machine that has the devices.

let_go() { true; }

# offer NAME...: shows each to its own driver and to lsusb, and shares them as 1-1, 1-2, ... in this order.
offer() {
  for name in "$@"; do within 20 near "$name" || fail "this machine has no device $name"; done
  sleep 1
  words=
  for name in "$@"; do
    folder=$(near "$name")
    echo "device| $name"
    seen "$folder"
    drivers_of "$folder" >"/run/drivers.$name"
    case $(realpath "$folder") in
    # A device of another machine is shared only if it is named by its bus id.
    *vhci*) words="$words usb:$(basename "$folder")" ;;
    *) words="$words usb:serial=rig-$name" ;;
    esac
  done
  (
    rm -f /run/share.log
    farbus share $words --listen 0.0.0.0:3240 >/run/share.log 2>&1 &
    echo $! >/run/share.pid
    wait $!
    echo $? >/run/share.status
  ) &
  wait_for 30 grep -q "listening on" /run/share.log || fail "farbus share: $(cat /run/share.log)"
  cat /run/share.log
}

# Ends sharing; every device must have the drivers again that it had before.
withdraw() {
  kill -INT "$(cat /run/share.pid)"
  wait_for 10 [ -s /run/share.status ] || fail "farbus share does not end: $(cat /run/share.log)"
  [ "$(cat /run/share.status)" = 0 ] || fail "farbus share ended with $(cat /run/share.status): $(cat /run/share.log)"
  for file in /run/drivers.*; do
    name=${file##*.}
    as_before() { drivers_of "$(near "$name")" | cmp -s - "$file"; }
    within 10 as_before || fail "$name had the drivers: $(cat "$file"); now: $(drivers_of "$(near "$name")")"
  done
  echo "note: $(ls /run/drivers.* | wc -l) devices have their $(cat /run/drivers.* | wc -l) drivers again"
}

# expect_twin NAME: a device that is plugged in and not shared, and has to have its drivers again at the end.
expect_twin() {
  within 20 near "$1" || fail "this machine has no device $1"
  has_drivers() { drivers_of "$(near "$1")" | grep .; }
  within 10 has_drivers "$1" || fail "$1 has no driver"
  drivers_of "$(near "$1")" >"/run/drivers.$1"
}

# swap_for DEVICE NAME TWIN: swaps NAME, which is shared as DEVICE, for TWIN; NAME has to have its drivers again.
swap_for() {
  farbus swap "$1" --to "usb:$(basename "$(near "$3")")" || fail "farbus swap"
  as_before() { drivers_of "$(near "$2")" | cmp -s - "/run/drivers.$2"; }
  within 10 as_before "$@" || fail "$2 had the drivers: $(cat "/run/drivers.$2"); now: $(drivers_of "$(near "$2")")"
  [ -z "$(drivers_of "$(near "$3")" | grep -v usbfs)" ] || fail "$3 has drivers: $(drivers_of "$(near "$3")")"
  cat /run/share.log
}

# is_free: nobody uses the only shared device.
is_free() {
  available() { farbus status --json | grep -qE '"state": ?"available"'; }
  within 10 available || fail "it is not free: $(farbus status)"
}

# Prints what the exporter knows after a step has failed.
complaints() {
  tail -n 15 /run/share.log | sed 's/^/share: /'
  dmesg | tail -n 10 | sed 's/^/exporter: /'
}
