has_card() { [ -c /dev/snd/pcmC0D0p ]; }
no_card() { [ ! -e /proc/asound/card0 ]; }
wait_for 15 has_card || fail "no sound card in the guest"
share_usb 46f4:0002
wait_for 10 no_card || fail "its driver still has the card that farbus took"
attach 1-1
wait_for 15 has_card || fail "no sound card appeared"
sleep 0.5
amixer -c 0 sset PCM 100% unmute >/dev/null 2>&1
# Three seconds of a square wave, 48 kHz, 16 bits, two channels: 24 samples high, 24 low.
awk 'BEGIN { for (s = 0; s < 24; s++) printf "\\100\\037\\100\\037"; for (s = 0; s < 24; s++) printf "\\300\\340\\300\\340" }' >/run/words
printf "$(cat /run/words)" >/run/period
index=0
while [ $index -lt 10 ]; do cat /run/period >>/run/periods; index=$((index + 1)); done
index=0
while [ $index -lt 300 ]; do cat /run/periods >>/run/tone; index=$((index + 1)); done
start=$(uptime_now)
aplay -q -D hw:0,0 -t raw -f S16_LE -r 48000 -c 2 /run/tone || fail "aplay"
echo "note: 3 s of tone played in $(elapsed "$start" "$(uptime_now)") s"
sleep 0.5
detach
unshare_usb snd-usb-audio
