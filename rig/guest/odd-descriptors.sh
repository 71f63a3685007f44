# Plugs in devices whose descriptors break the specification, one after the other, and shows what the kernel has made of
# each: its own table of devices, repaired, with all settings.
mount -t debugfs none /sys/kernel/debug || fail "no debugfs"
table=/sys/kernel/debug/usb/devices
[ -r $table ] || fail "no table of USB devices"
# id_of SEED: what sysfs has as its product.
id_of() { printf '%04x' $(($1 + 1)); }
device_of() {
  for folder in /sys/bus/usb/devices/*-*; do
    [ "$(cat "$folder/idVendor" 2>/dev/null):$(cat "$folder/idProduct" 2>/dev/null)" = "1209:$(id_of "$1")" ] && return
  done
  return 1
}
is_decided() { device_of "$1" || dmesg | grep -q "unable to enumerate"; }
# A port whose device was refused is taken, and never in use.
ports_taken() { cat /sys/devices/platform/vhci_hcd.*/status* | awk '$3 == "005" || $3 == "006" { print $2 }'; }
is_gone() { ! device_of "$1" && [ -z "$(ports_taken)" ]; }
seed=$FIRST
while [ "$seed" -lt "$END" ]; do
  dmesg -c >/dev/null
  usbip --tcp-port "$PORT" attach -r "$EXPORTER" -b "1-$seed" >/run/attach.log 2>&1 || fail "attach of $seed"
  wait_for 60 is_decided "$seed" || fail "nothing became of $seed"
  if device_of "$seed"; then
    # Its configuration is chosen in the same step.
    sleep 0.2
    awk -v RS= "/Vendor=1209 ProdID=$(id_of "$seed") /" $table | sed "s/^/odd $seed /"
  else
    echo "odd $seed refused"
  fi
  for port in $(ports_taken); do echo "${port#0}" >/sys/devices/platform/vhci_hcd.0/detach || fail "detach of $seed"; done
  wait_for 20 is_gone "$seed" || fail "$seed stays"
  seed=$((seed + 1))
done
echo "odd end"
