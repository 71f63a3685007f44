# Three boards, each of which becomes another device in its port and back: what a program in `farbus run`, the kernel's vhci and
# a virtual machine's controller (this one's own) see of that. The rig sets GAPS, the seconds for which a board is away, A and B, its
# two makes.
rmmod dummy_hcd && insmod /modules/dummy_hcd.ko num=3 || fail "no three controllers"
mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/usb_gadget || fail "no gadget support"
# make_gadget NAME ID PRODUCT FUNCTION
make_gadget() {
  mkdir "$1" && echo "0x${2%:*}" >"$1/idVendor" && echo "0x${2#*:}" >"$1/idProduct" || fail "no gadget $1"
  mkdir "$1/strings/0x409" "$1/configs/c.1" "$1/functions/$4.0" && echo "$3" >"$1/strings/0x409/product" || fail "no gadget $1"
  ln -s "$PWD/$1/functions/$4.0" "$1/configs/c.1" || fail "no function in $1"
}
for board in 0 1 2; do
  make_gadget "a$board" "$A" "board a" SourceSink
  make_gadget "b$board" "$B" "other b" Loopback
done
cd /
udc() { echo "/sys/kernel/config/usb_gadget/$1/UDC"; }
plug() { echo "dummy_udc.$2" >"$(udc "$1$2")" || fail "board $2 does not become $1"; }
unplug() { echo >"$(udc "$1$2")" || fail "board $2 does not go"; }
# The port of a board, and whether it is configured there.
port() { ls "/sys/devices/platform/dummy_hcd.$1"/usb*/ | grep -E '^[0-9]+-1$'; }
is_plugged() { [ -n "$(cat /sys/bus/usb/devices/"$(port "$1")"/bConfigurationValue)" ]; }
for board in 0 1 2; do
  plug a $board
  wait_for 20 is_plugged $board || fail "board $board is not there"
done
farbus share "usb:$(port 0)" "usb:$(port 1)" "usb:$(port 2)" --follow "$B" --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
share_pid=$!
wait_for 30 grep -q "listening on" /run/share.log || fail "share: $(cat /run/share.log)"
names() { farbus list "127.0.0.1:$PORT" | awk '/^board|^other/ { print $1, $2 }' | sort; }
names >/run/names
[ "$(wc -l </run/names)" = 3 ] || fail "not three boards: $(cat /run/names)"

# Each writes what it sees: vendor and product by sysfs, the product's name, and what the descriptors say.
cat >/tmp/watch <<'END'
cd /sys/bus/usb/devices
last=
until [ -e /tmp/stop ]; do
  set -- [0-9]*-1
  vendor= product= name= bus= device=
  { read -r vendor <"$1/idVendor"; read -r product <"$1/idProduct"; } 2>/dev/null
  if [ -n "$product" ] && [ "$vendor:$product" != "$last" ]; then
    { read -r name <"$1/product"; read -r bus <"$1/busnum"; read -r device <"$1/devnum"; } 2>/dev/null
    bytes=$(head -c 12 "$(printf /dev/bus/usb/%03d/%03d "$bus" "$device")" | od -An -tx1 | cut -d ' ' -f 10-) 2>/dev/null
    echo "$vendor:$product $name $bytes" >/tmp/seen.new && mv /tmp/seen.new /tmp/seen
    [ -n "$bytes" ] && last=$vendor:$product
  fi
  sleep 0.1
done
END
farbus run "127.0.0.1:$PORT/1-1" -- sh /tmp/watch >/run/run.log 2>&1 &
run_pid=$!
farbus attach "127.0.0.1:$PORT/1-2" --via kernel --follow "$B" >/run/kernel.log 2>&1 &
kernel_pid=$!
farbus attach "127.0.0.1:$PORT/1-3" --via redir --listen 0.0.0.0:4000 --follow "$B" >/run/redir.log 2>&1 &
redir_pid=$!
wait_for 30 grep -q "attached at" /run/redir.log || fail "redir: $(cat /run/redir.log)"
say lent
await connected

# What the device of this make and name looks like: ID, name, and the bytes of both ids in its descriptor.
looks() { echo "$1 $2 $(echo "$1" | sed -E 's/(..)(..):(..)(..)/\2 \1 \4 \3/')"; }
seen_by_run() { [ "$(cat /tmp/seen)" = "$(looks "$1" "$2")" ]; }
# is_at CONTROLLER ID PRODUCT: such a device is configured behind it.
is_at() {
  for folder in $(usb_device "$2"); do
    case $(realpath "$folder") in
    *"$1"*) [ "$(cat "$folder/product")" = "$3" ] && [ -n "$(cat "$folder/bConfigurationValue")" ] && return ;;
    esac
  done
  return 1
}
seen_by_kernel() { is_at vhci "$@"; }
seen_by_redir() { is_at pci "$@"; }
# flash BOARD WAY: as often as there are gaps.
flash() {
  now=a next=b count=0
  for gap in $GAPS; do
    unplug $now "$1"
    sleep "$gap"
    plug $next "$1"
    case $next in a) id=$A product="board a" ;; b) id=$B product="other b" ;; esac
    wait_for 60 "seen_by_$2" "$id" "$product" || break
    count=$((count + 1))
    [ $((count % 10)) = 0 ] && echo "$2: $count"
    [ $now = a ] && now=b next=a || now=a next=b
  done
  echo $count >"/run/count.$2"
}
wait_for 30 seen_by_run "$A" "board a" || fail "run: $(tail -n 3 /run/run.log; cat /tmp/seen)"
wait_for 30 seen_by_kernel "$A" "board a" || fail "kernel: $(cat /run/kernel.log)"
wait_for 30 seen_by_redir "$A" "board a" || fail "redir: $(cat /run/redir.log)"
start=$(uptime_now)
flash 0 run &
flashing="$!"
flash 1 kernel &
flashing="$flashing $!"
flash 2 redir &
wait $flashing $!
for way in run kernel redir; do
  [ "$(cat /run/count.$way)" = "$(echo $GAPS | wc -w)" ] || fail "$way saw $(cat /run/count.$way): $(tail -n 5 /run/$way.log /run/share.log)
seen: $(cat /tmp/seen)"
done
echo "note: $(cat /run/count.run) by run, $(cat /run/count.kernel) by the kernel, $(cat /run/count.redir) by redir in $(elapsed "$start" "$(uptime_now)") s"
names | cmp - /run/names || fail "names and bus ids were $(cat /run/names) and are $(names)"
: >/tmp/stop
wait $run_pid || fail "farbus run ended with $?: $(cat /run/run.log)"
kill -INT $kernel_pid $redir_pid
wait $kernel_pid || fail "farbus attach --via kernel ended with $?: $(tail -n 5 /run/kernel.log)"
wait $redir_pid || fail "farbus attach --via redir ended with $?: $(tail -n 5 /run/redir.log)"
kill -INT $share_pid
wait $share_pid || fail "farbus share ended with $?: $(tail -n 5 /run/share.log)"
