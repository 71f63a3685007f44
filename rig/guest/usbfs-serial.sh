tty() { ls /sys/bus/usb-serial/devices | head -n 1; }
has_tty() { t=$(tty) && [ -n "$t" ] && [ -c "/dev/$t" ]; }
no_tty() { [ -z "$(tty)" ]; }
wait_for 15 has_tty || fail "no serial port in the guest"
share_usb 0403:6001
wait_for 5 no_tty || fail "its driver still has the adapter that farbus took"
attach 1-1
wait_for 15 has_tty || fail "no serial port appeared"
port=/dev/$(tty)
stty -F "$port" raw -echo 115200 || fail "stty"
exec 3<>"$port"
cat <&3 >/run/heard &
reader=$!
seq 1 400 | sed 's/^/the quick brown fox number /' >/run/said
cat /run/said >&3
tr a-z A-Z </run/said >/run/expected
complete() { [ "$(stat -c %s /run/heard)" -ge "$(stat -c %s /run/expected)" ]; }
wait_for 60 complete || fail "heard $(stat -c %s /run/heard) of $(stat -c %s /run/expected) bytes"
kill $reader
exec 3>&-
cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
echo "note: $(stat -c %s /run/heard) bytes each way"
detach
unshare_usb ftdi_sio
