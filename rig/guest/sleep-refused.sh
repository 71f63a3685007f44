# Suspends the devices only, which vhci can refuse, and wakes up at once (Documentation/power/basic-pm-debugging).
grep -qw freeze /sys/power/state || fail "this kernel does not sleep: $(cat /sys/power/state)"
echo devices >/sys/power/pm_test || fail "this kernel cannot try to sleep: $(cat /sys/power/pm_test)"
echo 1 >/sys/module/suspend/parameters/pm_test_delay
nap() { echo freeze 2>/run/nap >/sys/power/state; }
asleep() { dmesg | grep -c "PM: suspend exit"; }

nap || fail "nothing is attached, and it does not sleep: $(cat /run/nap)"
# A device that is attached through the kernel prevents sleep.
attach keyboard
plugged() { [ -n "$(ports_in_use)" ]; }
wait_for 15 plugged || fail "no device appeared"
sleep 1
nap && fail "it sleeps while a device is attached"
dmesg | grep "Do not suspend" || fail "something else kept it awake"
plugged || fail "the attempt cost the device"
detach
