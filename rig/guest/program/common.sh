# Functions for programs that use devices of this guest twice: through the guest's kernel, and inside `farbus run`.

# near ID: waits until the device is plugged in and configured; sets $near, its folder.
near() {
  near=
  configured() { near=$(near_device "$1") && [ -n "$(cat "$near/bConfigurationValue")" ]; }
  wait_for 20 configured "$1" || fail "no device $1 in the guest"
  configured "$1"
}

# share WHAT...: offers devices as 1-1, 1-2, ... in this order.
share() {
  rm -f /run/share.log
  farbus share "$@" --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
  share_pid=$!
  wait_for 20 grep -q "listening on" /run/share.log || fail "farbus share: $(cat /run/share.log)"
}

# Ends sharing: nobody may still have a device.
unshare() {
  not_used() { farbus list "127.0.0.1:$PORT" --json >/run/list && ! grep -q '"in use"' /run/list; }
  wait_for 10 not_used || fail "a device is in use after its program has ended: $(cat /run/list)"
  kill -INT $share_pid
  wait $share_pid || fail "farbus share ended with $? after Ctrl-C: $(cat /run/share.log)"
}

# A guest without udev has no /run/udev, and a folder /run of its own is what programs have there: their results are in /tmp.
# inside DEVICE... -- PROGRAM...: a program that sees the devices, and nothing of this guest's own.
inside() {
  devices=
  while [ "$1" != -- ]; do
    devices="$devices 127.0.0.1:$PORT/$1"
    shift
  done
  farbus run $devices "$@"
}
