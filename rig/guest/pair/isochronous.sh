# The exporter also has farbus's source and sink: shared over the loopback and attached by vhci, it is one of its devices.

near() { find_device "$1" near || find_device "$1" far; }

attach_zero() {
  farbus share zero,speed=full,fill=mod63,verify --listen 127.0.0.1:3250 >/run/zero.log 2>&1 &
  wait_for 20 grep -q "listening on" /run/zero.log || fail "farbus share zero: $(cat /run/zero.log)"
  farbus attach 127.0.0.1:3250/1-1 --via kernel >/run/zero-attach.log 2>&1 &
  within 20 near zero || fail "zero did not appear: $(cat /run/zero.log /run/zero-attach.log)"
}

# Whether zero itself counted wrong or lost data.
zero_is_content() {
  near zero >/dev/null || fail "zero is gone: $(cat /run/zero-attach.log)"
  ! grep -iE "warn|error" /run/zero.log
}
