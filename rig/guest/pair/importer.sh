# The machine that uses the other's devices, by its own drivers and programs.

let_go() {
  killall -q -9 farbus
  for port in $(ports_in_use); do usbip detach -p "$port"; done
  wait_for 5 no_port_in_use
  rm -f /run/attach.log
  dmesg -c >>/run/kernel.log
}

# take NAME NUMBER: attaches device 1-NUMBER, which has to be NAME and to have the same descriptors as there.
take() {
  attach "1-$2"
  configured() { folder=$(far "$1") && [ -n "$(cat "$folder/bConfigurationValue")" ]; }
  within 20 configured "$1" || fail "it did not appear"
  device=$(far "$1")
  dmesg -c >>/run/kernel.log
}

# has_driver NAME: one of the interfaces of the device taken has this driver.
has_driver() { drivers_of "$device" | grep -q " $1\$"; }
insist_on_driver() { within 15 has_driver "$1" || fail "driver $1 did not take it; it has: $(drivers_of "$device")"; }

# lsusb after the driver is there, so that the device is in the same state on both sides.
compare() {
  sleep 0.5
  seen "$device"
}

note() { echo "note: $*"; }

# use_disk NAME NUMBER DRIVER: reads the host's tree, and writes another one.
use_disk() {
  take "$1" "$2"
  within 20 has_disk || fail "no disk appeared"
  insist_on_driver "$3"
  compare
  dev=$(disk)
  mount -t ext4 "/dev/$dev" /mnt || fail "mount"
  start=$(uptime_now)
  (cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the host's tree: $(grep -v OK /run/check | head -n 5)"
  read_done=$(uptime_now)
  write_tree /mnt/guest
  umount /mnt || fail "umount"
  note "$3, tree checked in $(elapsed "$start" "$read_done") s, own written in $(elapsed "$read_done" "$(uptime_now)") s"
  detach
  wait_for 5 no_disk || fail "the disk stayed after detach"
}

use_disc() {
  take "$1" "$2"
  wait_for 15 [ -b /dev/sr0 ] || fail "no disc drive appeared"
  insist_on_driver usb-storage
  compare
  mount -t iso9660 -o ro /dev/sr0 /mnt || fail "mount: $(cat /sys/block/sr0/size) sectors"
  start=$(uptime_now)
  (cd /mnt && sha256sum -c MANIFEST >/run/check 2>&1) || fail "the disc's tree: $(grep -v OK /run/check | head -n 5)"
  note "$(wc -l </run/check) files checked in $(elapsed "$start" "$(uptime_now)") s"
  umount /mnt || fail "umount"
  detach
}

# use_input NAME NUMBER: reads the events at /dev/input while the host makes them.
use_input() {
  take "$1" "$2"
  input() { ls -d "$device"/*:*/*/input/input*/event* | head -n 1 | grep .; }
  node() { [ -c "/dev/input/$(basename "$(input)")" ]; }
  within 15 input && within 5 node || fail "no input device appeared"
  insist_on_driver usbhid
  compare
  /bin/busybox dd if="/dev/input/$(basename "$(input)")" of=/run/events bs=24 2>/dev/null &
  reader=$!
  sleep 0.2
  say ready
  await played
  size() { stat -c %s /run/events; }
  still() { before=$(size) && sleep 0.7 && [ "$before" = "$(size)" ] && [ "$before" -gt 0 ]; }
  within 15 still || fail "no event, or no end of events"
  kill $reader
  hexdump -v -e '"event " 24/1 "%02x" "\n"' /run/events
  detach
}

# use_audio NAME NUMBER: three seconds of a square wave, 48 kHz, 16 bits, two channels: 24 samples up, 24 down.
use_audio() {
  take "$1" "$2"
  has_card() { [ -c /dev/snd/pcmC0D0p ]; }
  wait_for 15 has_card || fail "no sound card appeared"
  insist_on_driver snd-usb-audio
  compare
  amixer -c 0 sset PCM 100% unmute >/dev/null 2>&1
  awk 'BEGIN { for (s = 0; s < 24; s++) printf "\\100\\037\\100\\037"; for (s = 0; s < 24; s++) printf "\\300\\340\\300\\340" }' >/run/words
  printf "$(cat /run/words)" >/run/period
  index=0
  while [ $index -lt 10 ]; do cat /run/period >>/run/periods && index=$((index + 1)); done
  index=0
  while [ $index -lt 300 ]; do cat /run/periods >>/run/tone && index=$((index + 1)); done
  start=$(uptime_now)
  aplay -q -D hw:0,0 -t raw -f S16_LE -r 48000 -c 2 /run/tone || fail "aplay"
  note "3 s of tone played in $(elapsed "$start" "$(uptime_now)") s"
  sleep 0.5
  detach
}

# use_serial NAME NUMBER DRIVER: the other end of the line answers in capital letters.
use_serial() {
  take "$1" "$2"
  tty() { ls -d "$device"/*:*/ttyUSB* "$device"/*:*/tty/ttyACM* 2>/dev/null | head -n 1 | grep .; }
  within 15 tty || fail "no serial port appeared"
  insist_on_driver "$3"
  compare
  port=/dev/$(basename "$(tty)")
  wait_for 5 [ -c "$port" ] || fail "no node $port"
  stty -F "$port" raw -echo 115200 || fail "stty"
  exec 3<>"$port"
  cat <&3 >/run/heard &
  reader=$!
  start=$(uptime_now)
  seq 1 400 | sed 's/^/the quick brown fox number /' >/run/said
  cat /run/said >&3
  tr a-z A-Z </run/said >/run/expected
  complete() { [ "$(stat -c %s /run/heard)" -ge "$(stat -c %s /run/expected)" ]; }
  within 60 complete || fail "heard $(stat -c %s /run/heard) of $(stat -c %s /run/expected) bytes"
  note "$3, $(stat -c %s /run/heard) bytes each way in $(elapsed "$start" "$(uptime_now)") s"
  kill $reader
  exec 3>&-
  cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
  detach
}

# open_line NAME NUMBER DRIVER: takes a serial port, and reads from it as long as it is open.
open_line() {
  take "$1" "$2"
  tty() { ls -d "$device"/*:*/ttyUSB* 2>/dev/null | head -n 1 | grep .; }
  within 15 tty || fail "no serial port appeared"
  insist_on_driver "$3"
  compare
  port=/dev/$(basename "$(tty)")
  wait_for 5 [ -c "$port" ] || fail "no node $port"
  stty -F "$port" raw -echo 115200 || fail "stty"
  exec 3<>"$port"
  cat <&3 >/run/heard &
  reader=$!
  : >/run/expected
}

# talk WHO: sends lines, and waits until the other end has answered them.
talk() {
  seq 1 100 | sed "s/^/the $1 brown fox number /" >/run/said
  cat /run/said >&3
  tr a-z A-Z </run/said >>/run/expected
  complete() { [ "$(stat -c %s /run/heard)" -ge "$(stat -c %s /run/expected)" ]; }
  within 60 complete || fail "heard $(stat -c %s /run/heard) of $(stat -c %s /run/expected) bytes from the $1"
}

# use_own_twin NAME NUMBER DRIVER TWIN: a serial port of the other machine that is swapped for one of this machine during
# use, and back. The kernel notices nothing on the device that it has attached; TWIN's own driver goes and returns.
use_own_twin() {
  within 20 near "$4" || fail "this machine has no device $4"
  twin=$(near "$4")
  is_driven() { drivers_of "$twin" | grep -q " $1\$"; }
  within 15 is_driven "$3" || fail "$4 has no driver"
  drivers_of "$twin" >/run/drivers.twin
  open_line "$1" "$2" "$3"
  own="$EXPORTER:$PORT/1-$2"
  talk first
  number=$(cat "$device/devnum")
  dmesg -c >>/run/kernel.log
  farbus swap "$own" --to "usb:$(basename "$twin")" || fail "farbus swap: $(cat /run/attach.log)"
  [ -z "$(drivers_of "$twin" | grep -v usbfs)" ] || fail "$4 has drivers: $(drivers_of "$twin")"
  farbus status | grep -q "its twin usb:" || fail "the status does not say so: $(farbus status)"
  talk second
  say twin
  await go-on
  farbus swap "$own" --to "$own" || fail "farbus swap back: $(cat /run/attach.log)"
  as_before() { drivers_of "$twin" | cmp -s - /run/drivers.twin; }
  within 10 as_before || fail "$4 had the drivers: $(cat /run/drivers.twin); now: $(drivers_of "$twin")"
  talk third
  # What is said of the twin names its place, which is another one.
  noticed=$(dmesg | grep -F "$(basename "$device")")
  dmesg -c >>/run/kernel.log
  [ -z "$noticed" ] || fail "the kernel noticed: $noticed"
  [ "$number" = "$(cat "$device/devnum")" ] || fail "it was device $number and is $(cat "$device/devnum")"
  cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
  note "$3, $(stat -c %s /run/heard) bytes each way, to an adapter of this machine and back, device $number throughout"
  kill $reader
  exec 3>&-
  detach
}

# use_twins NAME NUMBER DRIVER: a serial port that is swapped for another one during use, unnoticed on this machine.
use_twins() {
  open_line "$1" "$2" "$3"
  talk first
  number=$(cat "$device/devnum")
  dmesg -c >>/run/kernel.log
  say ready
  await swapped
  talk second
  noticed=$(dmesg)
  [ -z "$noticed" ] || fail "the kernel noticed: $noticed"
  [ "$number" = "$(cat "$device/devnum")" ] || fail "it was device $number and is $(cat "$device/devnum")"
  cmp /run/heard /run/expected || fail "what was heard is not the answer to what was said"
  note "$3, $(stat -c %s /run/heard) bytes each way by two adapters, device $number throughout"
  kill $reader
  exec 3>&-
  detach
}

# use_net NAME NUMBER OWN-ADDRESS OTHER-ADDRESS: ping, small and large.
use_net() {
  take "$1" "$2"
  interface() { ls -d "$device"/*:*/net/* 2>/dev/null | head -n 1 | grep .; }
  within 15 interface || fail "no network interface appeared"
  compare
  name=$(basename "$(interface)")
  ip addr add "$3/24" dev "$name" && ip link set "$name" up || fail "ip"
  within 20 ping -c 1 -W 1 -I "$name" "$4" || fail "no answer from $4: $(ip addr show "$name")"
  ping -c 20 -i 0.1 -W 2 -s 56 -I "$name" "$4" >/run/ping || fail "$(cat /run/ping)"
  ping -c 10 -i 0.1 -W 2 -s 1400 -I "$name" "$4" >>/run/ping || fail "$(cat /run/ping)"
  [ "$(grep -c ' 0% packet loss' /run/ping)" = 2 ] || fail "$(cat /run/ping)"
  note "$(drivers_of "$device" | head -n 1 | cut -d ' ' -f 2), 30 pings, $(grep -m 1 round-trip /run/ping)"
  detach
}

# use_card NAME NUMBER ATR [REPLY]: the card in the reader, asked by PC/SC.
use_card() {
  take "$1" "$2"
  compare
  pcscd --foreground --force-reader-polling >/run/pcscd.log 2>&1 &
  daemon=$!
  atr() { opensc-tool --card-driver default --atr 2>/run/atr.log | grep -i "$3"; }
  within 20 atr "$@" || fail "no card, or another: $(opensc-tool --atr 2>&1; tail -n 15 /run/pcscd.log)"
  if [ -n "$4" ]; then
    opensc-tool --card-driver default --send-apdu 80:01:00:00:06 >/run/apdu 2>&1 ||
      fail "$(cat /run/apdu; tail -n 15 /run/pcscd.log)"
    grep -q "$4" /run/apdu || fail "the card's answer is another: $(cat /run/apdu)"
  fi
  note "ATR $3 ${4:+and an answer to a command }by way of pcscd"
  kill $daemon
  wait $daemon
  detach
}

# use_files NAME NUMBER: files listed and fetched over MTP.
use_files() {
  take "$1" "$2"
  compare
  start=$(uptime_now)
  mtp-files >/run/files 2>/run/mtp.log || fail "mtp-files: $(tail -n 15 /run/files)"
  mkdir -p /run/fetched
  grep '^File ID' /run/files | cut -d ' ' -f 3 >/run/ids
  awk '/Filename:/ { sub(/.*Filename: /, ""); print }' /run/files >/run/names
  paste -d ' ' /run/ids /run/names 2>/dev/null >/run/list || awk 'NR == FNR { id[NR] = $0; next } { print id[FNR], $0 }' /run/ids /run/names >/run/list
  while read -r id file; do
    mtp-getfile "$id" "/run/fetched/$file" </dev/null >/run/fetch 2>&1 || fail "mtp-getfile $file: $(tail -n 5 /run/fetch)"
  done </run/list
  (cd /run/fetched && sha256sum -c MANIFEST >/run/check 2>&1) ||
    fail "$(grep -v OK /run/check | head -n 5; cat /run/files; tail -n 15 /run/mtp.log)"
  note "$(wc -l </run/check) files fetched and checked in $(elapsed "$start" "$(uptime_now)") s"
  detach
}

# use_printer NAME NUMBER: a page of text.
use_printer() {
  take "$1" "$2"
  wait_for 10 [ -c /dev/usb/lp0 ] || fail "no printer appeared"
  insist_on_driver usblp
  compare
  seq 1 2000 | sed 's/^/line of the page that is printed, number /' >/run/page
  say ready
  await print
  start=$(uptime_now)
  cat /run/page >/dev/usb/lp0 || fail "the printer does not take the page"
  note "usblp, $(stat -c %s /run/page) bytes in $(elapsed "$start" "$(uptime_now)") s"
  say printed
  await done
  echo "sha256: $(sha256sum </run/page)"
  detach
}

# use_midi NAME NUMBER: a few notes and a system exclusive message go out and come back.
use_midi() {
  take "$1" "$2"
  wait_for 15 [ -c /dev/snd/midiC0D0 ] || fail "no MIDI port appeared"
  insist_on_driver snd-usb-audio
  compare
  say ready
  await play
  amidi -p hw:0,0 -S "90 3C 7F 80 3C 40 F0 7D 66 61 72 62 75 73 F7" -r /run/heard -t 4 >/run/amidi 2>&1 ||
    fail "amidi: $(cat /run/amidi)"
  heard=$(hexdump -v -e '/1 "%02x "' /run/heard)
  [ "$heard" = "90 3c 7f 80 3c 40 f0 7d 66 61 72 62 75 73 f7 " ] || fail "what came back is: $heard"
  note "snd-usb-audio, $(stat -c %s /run/heard) bytes each way"
  detach
}

# use_tests NAME NUMBER: the kernel's own test of devices.
use_tests() {
  take "$1" "$2"
  insist_on_driver usbtest
  compare
  start=$(uptime_now)
  test_all "$(usb_node "$device")"
  note "pass of $(elapsed "$start" "$(uptime_now)") s"
  detach
}

# use_stream NAME NUMBER INTERFACE ALTERNATE IN OUT BYTES PACKETS INTERVAL_US SECONDS: see isostream.c.
use_stream() {
  take "$1" "$2"
  compare
  node=$(usb_node "$device")
  shift 2
  isostream "$node" "$@" || fail "isostream: $(dmesg | tail -n 5)"
  detach
}
