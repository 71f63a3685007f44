# If this guest hangs, its console shows after a minute which task waits where.
tell_what_waits() {
  sleep 60
  echo w >/proc/sysrq-trigger
  echo "share.log: $(cat /run/share.log)"
  for task in /proc/[0-9]*/task/*; do
    case $(cat "$task/comm" 2>/dev/null) in
    kworker* | ksoftirqd* | "") ;;
    *) echo "waits: $task $(cat "$task/comm") in $(cat "$task/wchan") call $(cat "$task/syscall") of $(tr '\0' ' ' <"$task/cmdline")" ;;
    esac
  done
}
tell_what_waits >/dev/console 2>&1 &
attach_disk 1-1
(while [ ! -e /run/enough ] && dd if="/dev/$dev" of=/dev/null bs=128k iflag=direct 2>/dev/null; do :; done) &
reader=$!
sleep 0.5
start=$(uptime_now)
kill -9 "$share_pid"
wait_for 5 no_port_in_use || fail "the port is still in use"
# The same disk again, with its own driver.
has_own() { has_disk && case $(realpath "/sys/block/$(disk)") in *vhci*) false ;; esac }
wait_for 10 has_own || fail "the stick was not given back to its driver: $(cat /run/share.log)"
echo "note: given back $(elapsed "$start" "$(uptime_now)") s after the kill"
# The stick may now have the vhci disk's name, and cannot be read while its driver releases it.
touch /run/enough
wait "$reader"
dd if="/dev/$(disk)" of=/dev/null bs=128k count=8 iflag=direct 2>/dev/null || fail "it does not read"
# Nothing prevents sharing it again.
share_usb 46f4:0001
unshare_usb usb-storage
