attach "$DEVICE"
has_tty() { [ -c /dev/ttyACM0 ]; }
wait_for 15 has_tty || fail "no serial port appeared"
stty -F /dev/ttyACM0 raw -echo || fail "stty"
exec 3<>/dev/ttyACM0
cat <&3 >/run/heard &
reader=$!
seq 1 100 | sed 's/^/the quick brown fox number /' >/run/said
cat /run/said >&3
tr a-z A-Z </run/said >/run/expected
complete() { [ "$(stat -c %s /run/heard)" -ge "$(stat -c %s /run/expected)" ]; }
wait_for 60 complete || fail "heard $(stat -c %s /run/heard) of $(stat -c %s /run/expected) bytes"
kill $reader
exec 3>&-
cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
echo "note: $(stat -c %s /run/heard) bytes each way"
detach
