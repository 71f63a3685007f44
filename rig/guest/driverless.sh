# A source and sink has no driver here: usbtest is not loaded. A keyboard has one.
told() { grep -q "no driver of this kernel took it" /run/attach.log; }
for ATTACH_OPTIONS in "--via kernel" "--via auto"; do
  attach 1-1
  wait_for 20 told || fail "farbus attach $ATTACH_OPTIONS says nothing of a device without a driver"
  farbus status --json | tr -d ' \n' | grep -q '"drivers":\[\]' || fail "status: $(farbus status --json)"
  farbus status | grep -q "no driver of this kernel took it" || fail "status: $(farbus status)"
  [ -n "$(ports_in_use)" ] || fail "it is not plugged in"
  detach

  attach 1-2
  driven() { farbus status --json | tr -d ' \n' | grep -q '"drivers":\["usbhid"\]'; }
  wait_for 20 driven || fail "status: $(farbus status --json)"
  # For longer than it takes to be told.
  sleep 4
  told && fail "farbus attach $ATTACH_OPTIONS says that a device with a driver has none"
  detach
done
