# Functions for changes to two daemons while the file system of a stick is under load: lab3 shares the stick, desk has it attached. The
# scripts after this one say which changes. FAR is the stick's disk in the importer's kernel.
FAR=${FAR:-46f4:0001}

# mount_disk DEVICE: mounts what is to continue under load.
mount_disk() {
  attach_disk "$1"
  mount -t ext4 "/dev/$dev" /mnt || fail "mount"
  number=$(cat "$(far_device "$FAR")/devnum")
  dmesg | tail -n 1 >/run/before
}

# under_load TIMES COMMAND...: runs the command TIMES times during a write, and during a read, of a tree that is verified.
under_load() {
  times=$1
  shift
  for pass in $(seq "$times"); do
    # A soak writes more trees than fit on the disk; the first one stays for the reads.
    [ "$pass" -lt 7 ] || rm -rf "/mnt/guest-$((pass - 5))" || fail "no room could be made"
    write_tree "/mnt/guest-$pass" &
    worker=$!
    sleep 0.3
    "$@"
    wait $worker || fail "writing over it"
    (
      echo 3 >/proc/sys/vm/drop_caches
      cd "/mnt/guest-$pass" && sha256sum -c MANIFEST >/run/check 2>&1
    ) &
    worker=$!
    sleep 0.1
    "$@"
    wait $worker || fail "reading over it: $(grep -v OK /run/check | head -n 5)"
  done
}

# restart HOST ANSWER: replaces the process $daemon of that host's daemon by another one, and checks that it says so.
restarts=0
still=
restart() {
  old=$daemon
  as "$1" daemon restart --json >/run/restart || fail "restart: $(cat /run/restart /run/attach.log /run/share.log)"
  daemon=$(sed -n 's/.*"pid":\([0-9]*\).*/\1/p' /run/restart)
  grep -q "$2" /run/restart || fail "nothing was passed on: $(cat /run/restart /run/attach.log /run/share.log)"
  gone() { ! grep -q farbus "/proc/$old/cmdline" 2>/dev/null; }
  wait_for 20 gone || fail "the process before this one stays: $(cat /run/attach.log /run/share.log)"
  restarts=$((restarts + 1))
  still="$still $(sed -n 's/.*"still_ms":\([0-9]*\).*/\1/p' /run/restart)"
}

# How many links were made again after the first.
links() { grep -c "linked again" /run/attach.log; }
said() { echo "note: $restarts restarts, $(links) new links; still for$still ms until let go of"; }

# heard_nothing WORDS: detaches the disk, checks that it is the same one, and that the kernel's log has none of these words.
heard_nothing() {
  umount /mnt || fail "umount"
  [ "$(cat "$(far_device "$FAR")/devnum")" = "$number" ] || fail "the device is another one"
  dmesg | sed "1,/$(tail -c 40 /run/before | sed 's/[][\/.*^$]/./g')/d" >/run/kernel
  grep -iE "error|reset|disconnect|timed out|abort|$1" /run/kernel && fail "the kernel heard of it"
}
