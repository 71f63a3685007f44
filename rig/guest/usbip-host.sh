# The guest's own stick, offered by the kernel's exporter and its usbipd. The script after this one uses it as DEVICE.
wait_for 15 has_disk || fail "no disk in the guest"
DEVICE=$(basename "$(near_device 46f4:0001)")

# refused STATUS WORD: an attach that has to end with this status and message.
refused() {
  farbus attach "$EXPORTER:$PORT/$DEVICE" --via "${VIA:-kernel}" >/run/refusal 2>&1
  status=$?
  cat /run/refusal
  [ $status = "$1" ] || fail "farbus attach ended with $status, not $1"
  grep -q "^farbus: $2: " /run/refusal || fail "farbus attach does not say '$2'"
}

# At first no process listens; then usbipd listens and has nothing to offer.
refused 5 network
usbipd -D || fail "usbipd"
can_list() { farbus list "$EXPORTER:$PORT" >/run/list 2>&1; }
wait_for 5 can_list || fail "farbus list: $(cat /run/list)"
refused 4 gone
usbip bind -b "$DEVICE" || fail "bind"
wait_for 5 no_disk || fail "its driver still has the disk that usbip-host took"
is_listed() { can_list && grep -q " $DEVICE .* 46f4:0001 " /run/list; }
wait_for 5 is_listed || fail "farbus list does not show it: $(cat /run/list)"
cat /run/list
