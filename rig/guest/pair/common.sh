# Functions for both machines of a pair. Their devices have the serial numbers rig-NAME.

# Runs each request of the host in a shell of its own, so that a failure does not end the others.
serve() {
  while read -r words; do
    [ "$words" = end ] && return
    (eval "$words")
    status=$?
    [ $status = 0 ] || let_go
    say ended $status
  done
}

# within SECONDS COMMAND...: as wait_for, by the clock, for commands that take long themselves.
within() {
  read -r now rest </proc/uptime
  deadline=$((${now%.*} + $1 + 1))
  shift
  until "$@" >/dev/null 2>&1; do
    read -r now rest </proc/uptime
    [ "${now%.*}" -lt $deadline ] || return 1
    sleep 0.1
  done
}

# The folder of the device NAME: the machine's own, or one that came through vhci. Nothing here starts a process for each
# device that it looks at: that would cost a second under emulation.
near() { find_device "$1" near; }
far() { find_device "$1" far; }
find_device() {
  for folder in /sys/bus/usb/devices/*-*; do
    serial=
    [ -e "$folder/serial" ] && read -r serial <"$folder/serial"
    # farbus's source and sink has a serial number of its own.
    [ "$serial" = "rig-$1" ] || [ "$1 $serial" = "zero 0" ] || continue
    case $(realpath "$folder") in *vhci*) side=far ;; *) side=near ;; esac
    [ $side = "$2" ] && echo "$folder" && return
  done
  false
}

# Everything that lsusb knows of a device. Bus and device number differ from machine to machine; nothing else may.
seen() {
  lsusb -v -s "$(cat "$1/busnum"):$(cat "$1/devnum")" 2>&1 | sed 1,2d | grep -v '^Bus ' | sed 's/^/lsusb| /'
}

# The drivers of a device's interfaces.
drivers_of() {
  for interface in "$1"/*:*; do
    [ -e "$interface/driver" ] && echo "${interface##*:} $(basename "$(readlink "$interface/driver")")"
  done
  true
}

# An oops ends the machine; warnings of the kernel count, too. The steps empty the log, so they keep them here.
kernel_is_content() {
  dmesg >>/run/kernel.log
  if grep -E 'WARNING:|BUG:|blocked for more than|soft lockup|rcu.*stall' /run/kernel.log; then fail "the kernel is not content"; fi
}
