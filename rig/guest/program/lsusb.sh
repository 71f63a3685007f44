# All that lsusb says of each device, by the guest's kernel and inside `farbus run`. Only the address may differ: each kernel numbers its buses and devices
# itself. No driver is loaded, so that lsusb can claim the tablet's interface both times, and print its report descriptor.
cat >/tmp/look <<'END'
look() { for id in $IDS; do lsusb -v -d "$id" 2>&1 | sed 's/^Bus [0-9]* Device [0-9]*:/Bus and device:/' >"/tmp/$1.$id"; done; }
END
. /tmp/look
names=
words=
for id in $IDS; do
  near "$id"
  words="$words usb:$(basename "$near")"
  names="$names 1-$(echo $words | wc -w)"
done
look near
share $words
start=$(uptime_now)
export IDS
inside $names -- sh -c '. /tmp/look; look far; lsusb -t' || fail "farbus run ended with $?"
took=$(elapsed "$start" "$(uptime_now)")
for id in $IDS; do
  [ "$(wc -l <"/tmp/near.$id")" -gt 40 ] || fail "lsusb says too little of $id: $(cat "/tmp/near.$id")"
  diff "/tmp/near.$id" "/tmp/far.$id" || fail "$id is not the same inside"
  echo "same: $id, $(wc -l <"/tmp/near.$id") lines"
done
echo "note: $(cat /tmp/near.* | wc -l) lines, in $took s"
unshare
