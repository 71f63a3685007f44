# A sound card 100 ms away, with 10 ms of jitter each way: the test records its microphone and plays that on its speaker.
ln -s "$(command -v aplay)" /run/arecord
has_card() { [ -c /dev/snd/pcmC0D0p ] && [ -c /dev/snd/pcmC0D0c ]; }
no_card() { [ ! -e /proc/asound/card0 ]; }
sound="-q -D hw:0,0 -t raw -f S16_LE -r 48000 -c 2"
frames=$((SECONDS_OF_SOUND * 48000))
# The counter of that name, of the shared card.
count() { farbus status --json | tr ',{' '\n\n' | sed -n "s/^ *\"$1\": *\([0-9]*\).*/\1/p" | head -n 1; }

# After an idle time Linux sends a round trip's first ten segments and waits for their acknowledgement: a stream that begins
# then has a gap there, in the tone or in the silence before it. The guide names this setting for that.
echo 0 >/proc/sys/net/ipv4/tcp_slow_start_after_idle
share audio
distance 100 10
ATTACH_OPTIONS="--via kernel --grace 20"
attach 1-1
wait_for 30 has_card || fail "no sound card appeared"
# The first program lets farbus measure the jitter.
/run/arecord $sound -s 48000 /run/first || fail "arecord"
sleep 1

# A stream starts and ends at one end before the other, so the test counts only what happens in between.
late_in() { echo "$(count $1_late) $(count $1_missed_intervals)"; }
# during SPEAKER_OR_MICROPHONE COMMAND...: sets $late and $missed: how often the card had to wait, and for how many milliseconds.
during() {
  which=$1
  shift
  start=$(uptime_now)
  "$@" 2>/run/said &
  program=$!
  sleep 1
  read -r late missed <<END
$(late_in "$which")
END
  sleep $((SECONDS_OF_SOUND - 2))
  read -r late_then missed_then <<END
$(late_in "$which")
END
  wait $program || fail "$* $(cat /run/said)"
  took=$(elapsed "$start" "$(uptime_now)")
  late=$((late_then - late))
  missed=$((missed_then - missed))
  runs=$(grep -c -i -e overrun -e underrun /run/said)
  # Wait until what is under way has been played.
  sleep 2
}
during microphone /run/arecord $sound -s $frames /run/heard
[ "$(stat -c %s /run/heard)" = $((frames * 4)) ] || fail "recorded $(stat -c %s /run/heard) bytes"
recorded="$SECONDS_OF_SOUND s recorded in $took s: $runs overruns, the microphone was kept waiting $late times"
[ "$runs $late" = "0 0" ] || bad=yes
during speaker aplay $sound /run/heard
for what in tone_frames tone_breaks malformed_packets; do
  eval "$what=$(count speaker_$what)"
done
echo "far: $recorded; played in $took s: $runs underruns, the speaker was kept waiting $late times ($missed ms), heard $tone_frames of $frames frames, $tone_breaks out of place"
[ "$runs $late" = "0 0" ] || bad=yes
farbus status
detach
wait_for 10 no_card || fail "the card stays"
distance 0
unshare
[ "$tone_frames $tone_breaks $malformed_packets" = "$frames 0 0" ] || fail "the speaker did not hear what was recorded"
[ -z "$bad" ] || fail "the card or its program was kept waiting"
