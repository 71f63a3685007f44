# The files behind MTP, by the guest's kernel and inside `farbus run`.

# What libmtp prints of the device's address, which each kernel chooses itself, and the room that was left on the host's disk at that moment.
masked() {
  sed -e 's/ @ bus [0-9]*, dev [0-9]*/ @ its address/' -e 's/^\( *\(Bus location\|Device number\|FreeSpaceIn[A-Z][a-z]*\):\) .*/\1/'
}
cat >/tmp/look <<'END'
look() {
  for what in detect files; do mtp-$what >"/tmp/$what.$1" 2>&1 || fail "mtp-$what: $(cat "/tmp/$what.$1")"; done
}
fetch() {
  mkdir -p /tmp/fetched
  awk '/^File ID:/ { id = $3 } /Filename:/ { sub(/.*Filename: /, ""); print id, $0 }' /tmp/files.far >/tmp/names
  while read -r id file; do
    mtp-getfile "$id" "/tmp/fetched/$file" </dev/null >/tmp/said 2>&1 || fail "mtp-getfile $file: $(tail -n 5 /tmp/said)"
  done </tmp/names
}
END
. /tmp/look
near "$ID"
look near
share "usb:$(basename "$near")"
start=$(uptime_now)
inside 1-1 -- sh -c '. /rig/prelude; . /tmp/look; look far; fetch' || fail "farbus run ended with $?"
took=$(elapsed "$start" "$(uptime_now)")
for what in detect files; do
  masked </tmp/$what.near >/tmp/near
  masked </tmp/$what.far >/tmp/far
  [ "$(wc -l </tmp/near)" -gt 20 ] || fail "mtp-$what says too little: $(cat /tmp/near)"
  diff /tmp/near /tmp/far || fail "mtp-$what says something else inside"
done
(cd /tmp/fetched && sha256sum -c MANIFEST >/tmp/check 2>&1) || fail "$(cat /tmp/check /tmp/names)"
echo "note: $(cat /tmp/detect.far /tmp/files.far | wc -l) lines, $(wc -l </tmp/check) files fetched and checked, in $took s"
unshare
