attach "${DEVICE:-1-1}"
# Other input devices may exist (a power button); this keyboard is on USB, which is bus 3.
keyboard() {
  for input in /sys/class/input/event*; do
    [ "$(cat "$input/device/id/bustype" 2>/dev/null)" = 0003 ] && [ -e "/dev/input/${input##*/}" ] &&
      echo "/dev/input/${input##*/}" && return
  done
  false
}
wait_for 10 keyboard || fail "no keyboard appeared"
/bin/busybox dd if="$(keyboard)" of=/run/events bs=24 2>/dev/null &
reader=$!
sleep 0.2
say ready
await typed
size() { stat -c %s /run/events; }
still() { before=$(size) && sleep 1 && [ "$before" = "$(size)" ] && [ "$before" -gt 0 ]; }
wait_for 30 still || fail "no event, or no end of events"
kill $reader
hexdump -v -e '"event " 24/1 "%02x" "\n"' /run/events
detach
