# The exporter has two sound cards, at full and at high speed. The test records the microphone and plays that on the speaker.
ln -s "$(command -v aplay)" /run/arecord
has_card() { [ -c /dev/snd/pcmC0D0p ] && [ -c /dev/snd/pcmC0D0c ]; }
no_card() { [ ! -e /proc/asound/card0 ]; }
sound="-q -D hw:0,0 -t raw -f S16_LE -r 48000 -c 2"
frames=$((SECONDS_OF_SOUND * 48000))
for device in 1-1 1-2; do
  attach $device
  wait_for 15 has_card || fail "no sound card appeared"
  sleep 0.5
  /run/arecord $sound -s $frames --buffer-time=1000000 /run/heard || fail "arecord"
  [ "$(stat -c %s /run/heard)" = $((frames * 4)) ] || fail "recorded $(stat -c %s /run/heard) bytes"
  start=$(uptime_now)
  aplay $sound /run/heard || fail "aplay"
  echo "note: $SECONDS_OF_SOUND s played in $(elapsed "$start" "$(uptime_now)") s"
  cat /proc/asound/card0/stream0
  sleep 0.5
  say played
  await "go on"
  detach
  wait_for 10 no_card || fail "the card stays"
done
