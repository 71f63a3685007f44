# A load that verifies itself and does not know that it moves between hosts: a USB disk and a block disk that are read past the cache and
# written, and a keyboard.
attach_disk 1-1
folder_of_disk=$(dirname "$(usb_interface_of "$dev")")
keyboard() {
  for input in /sys/class/input/event*; do
    [ "$(cat "$input/device/id/bustype" 2>/dev/null)" = 0003 ] && [ -e "/dev/input/${input##*/}" ] && echo "$input" && return
  done
  false
}
wait_for 15 keyboard || fail "no keyboard appeared"
input=$(keyboard)
folder_of_keyboard=$(realpath "$input/device/device/../..")
has_card() { [ -c /dev/snd/pcmC0D0p ] && [ -c /dev/snd/pcmC0D0c ]; }
wait_for 15 has_card || fail "no sound card appeared"
folder_of_sound=$(realpath /sys/class/sound/card0/device/..)
ln -s "$(command -v aplay)" /run/arecord
sound="-D hw:0,0 -t raw -f S16_LE -r 48000 -c 2 --buffer-time=1000000"
/run/arecord -q $sound -s 48000 /run/tone || fail "arecord"
numbers() { echo "$(cat "$folder_of_sound/devnum") $(cat "$folder_of_disk/devnum") $(cat "$folder_of_keyboard/../devnum" "$folder_of_keyboard/devnum" 2>/dev/null)"; }
before=$(numbers)
# Reads all events at once, before the load: the kernel keeps 64 events for a reader, and drops all of them if the reader is late.
cat "/dev/input/${input##*/}" >/run/events &
reader=$!
chrt -f -p 50 $reader || fail "chrt"
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
(cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree"
mkdir -p /run/block && mount -t ext4 /dev/vda /run/block && mkdir -p /run/block/guest || fail "mount of the block disk"
dmesg -c >/dev/null
(until [ -e /run/quiet ]; do cat /run/tone; done) | aplay $sound >/run/aplay.log 2>&1 &
player=$!
renice -n -19 -p $player || fail "renice"
listen_for enough
say ready
pass=0
is_last=
until [ -n "$is_last" ]; do
  # At least one pass begins after the last move.
  if has_heard enough; then is_last=yes; fi
  pass=$((pass + 1))
  head -c 300000 /dev/urandom >/run/written
  cp /run/written /mnt/written && cp /run/written /run/block/written && sync || fail "write in pass $pass"
  echo 3 >/proc/sys/vm/drop_caches
  cmp /run/written /mnt/written || fail "what was written in pass $pass is not what is read"
  cmp /run/written /run/block/written || fail "what was written to the block disk in pass $pass is not what is read"
  (cd /run/block && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the block disk's tree in pass $pass"
  (cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree in pass $pass: $(grep -v OK /run/check | head -n 5)"
done
size() { stat -c %s /run/events; }
still() { seen=$(size) && sleep 1 && [ "$seen" = "$(size)" ] && [ "$seen" -gt 0 ]; }
wait_for 2 still || fail "no event, or no end of events"
kill $reader
touch /run/quiet
wait $player || fail "aplay ended with $?: $(cat /run/aplay.log)"
grep -i -e xrun -e underrun /run/aplay.log && fail "an xrun"
hexdump -v -e '"event " 24/1 "%02x" "\n"' /run/events >/run/typed
grep -q '00000300........$' /run/typed && fail "the reader of keys was too late for this kernel"
[ "$(numbers)" = "$before" ] || fail "a device has another number: it was enumerated anew ($before, $(numbers))"
dmesg | grep -i -e reset -e error -e offline -e disconnect -e 'new .*speed' && fail "the kernel has seen something"
cat /run/typed
write_tree /mnt/guest
umount /mnt || fail "umount"
head -c 3000000 /dev/urandom >/run/block/guest/noise && (cd /run/block/guest && sha256sum noise >SUM) && sync || fail "noise"
umount /run/block || fail "umount of the block disk"
say done "$pass"
detach
