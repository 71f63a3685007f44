# The card in a reader, by way of a PC/SC daemon inside `farbus run`. Nothing of it runs outside.
near "$ID"
share "usb:$(basename "$near")"
cat >/tmp/use <<'END'
. /rig/prelude
pcscd --foreground --info >/tmp/pcscd.log 2>&1 &
atr() { opensc-tool --card-driver default --atr 2>&1 | grep -i "$ATR"; }
wait_for 20 atr || fail "no card, or another: $(opensc-tool --atr 2>&1; tail -n 25 /tmp/pcscd.log)"
opensc-tool --card-driver default --send-apdu 80:01:00:00:06 >/tmp/apdu 2>&1 || fail "$(cat /tmp/apdu; tail -n 15 /tmp/pcscd.log)"
kill $!
wait $!
END
start=$(uptime_now)
export ATR
inside 1-1 -- sh /tmp/use || fail "farbus run ended with $?"
grep -q "$REPLY" /tmp/apdu || fail "the card's answer is another: $(cat /tmp/apdu)"
echo "note: ATR $ATR and an answer to a command, in $(elapsed "$start" "$(uptime_now)") s"
unshare
