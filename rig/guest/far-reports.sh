# A mouse 100 ms away that sends a report every millisecond: a gadget of the kernel's, behind usbfs.
mount -t configfs none /sys/kernel/config
insmod /modules/dummy_hcd.ko || fail "dummy_hcd"
gadget=/sys/kernel/config/usb_gadget/mouse
mkdir $gadget $gadget/configs/c.1 $gadget/strings/0x409 $gadget/functions/hid.0 || fail "no gadget"
echo 0x1d6b >$gadget/idVendor
echo 0x0105 >$gadget/idProduct
echo mouse >$gadget/strings/0x409/product
echo 4 >$gadget/functions/hid.0/report_length
# Two relative axes of 16 bits each.
printf '\x05\x01\x09\x02\xa1\x01\x09\x01\xa1\x00\x09\x30\x09\x31\x16\x01\x80\x26\xff\x7f\x75\x10\x95\x02\x81\x06\xc0\xc0' >$gadget/functions/hid.0/report_desc
ln -s $gadget/functions/hid.0 $gadget/configs/c.1
echo dummy_udc.0 >$gadget/UDC || fail "the gadget does not bind"
wait_for 15 near_device 1d6b:0105 || fail "no mouse"
mouse=$(basename "$(near_device 1d6b:0105)")

input() { ls -d "$(far_device 1d6b:0105)"/*:*/*/input/input*/event* | head -n 1 | grep .; }
node() { [ -c "/dev/input/$(basename "$(input)")" ]; }
share "usb:$mouse"
distance $RTT
# The second client attaches while the kernel still resets the port after the first.
for client in stock farbus; do
  CLIENT=$client
  count=$REPORTS
  [ $client = farbus ] || count=20
  ATTACH_OPTIONS="--via kernel --grace 20"
  attach 1-1
  wait_for 30 input && wait_for 5 node || fail "no input device appeared"
  sleep 2
  said=$(measure reports /dev/hidg0 "/dev/input/$(basename "$(input)")" $count) || failed="$failed $client: $said"
  echo "far: reports at $RTT ms by $client: $said"
  sleep 1
  detach
done
distance 0
unshare
[ -z "$failed" ] || fail "$failed"
# Half a round trip plus two milliseconds.
most=$(echo "$said" | sed -n 's/.*seconds at most \([0-9]*\) us;.*/\1/p')
[ "$most" -le $((RTT * 500 + 2000)) ] || fail "a report was on its way for $most us"
