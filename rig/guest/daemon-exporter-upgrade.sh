# Restarts the exporter's daemon during writes and reads. The stick stays taken and is not reset, and no user of the disk notices. The
# script before this one provides two daemons and the disk.
mount_disk stick
near() { cat "$(near_device 46f4:0001)/devnum"; }
before=$(near)
daemon=$share_pid
upgrade() {
  restart lab3 '"sessions":1'
  [ "$(basename "$(readlink "/sys/bus/usb/devices/$shared:1.0/driver")")" = usbfs ] || fail "the stick is not farbus's any more"
}
under_load $((2 * TIMES)) upgrade
heard_nothing "vhci|detected"
[ "$(near)" = "$before" ] || fail "the stick is another one"
grep -E "does not go on|begins anew|started anew" /run/share.log /run/attach.log && fail "its session did not go on"
said
detach
# The last process gives back the device that it inherited as well as one that it took itself.
kill -TERM "$daemon" || fail "it has ended"
has_driver() { [ "$(basename "$(readlink "/sys/bus/usb/devices/$shared:1.0/driver")")" = usb-storage ]; }
wait_for 20 has_driver || fail "the stick's driver does not have it again: $(cat /run/share.log)"
