# Words for what happens to two daemons, lab3 that shares a stick and desk that has it, while the stick's file system is at work: the
# scripts that go on from here say what. FAR is what the importer's kernel sees of it.
FAR=${FAR:-46f4:0001}

# mount_disk DEVICE: what is to go on under load.
mount_disk() {
  attach_disk "$1"
  mount -t ext4 "/dev/$dev" /mnt || fail "mount"
  number=$(cat "$(far_device "$FAR")/devnum")
  dmesg | tail -n 1 >/run/before
}

# under_load TIMES COMMAND...: so often the command runs in mid-write, and in mid-read, of a tree that checks out.
under_load() {
  times=$1
  shift
  for pass in $(seq "$times"); do
    # Not all of a soak's trees fit on the disk; the first stays for those that come back to it.
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

# restart HOST ANSWER: that host's daemon, whose process $daemon is, goes on in another process, and says so.
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

# Links made again after the first.
links() { grep -c "linked again" /run/attach.log; }
said() { echo "note: $restarts restarts, $(links) new links; still for$still ms until let go of"; }

# heard_nothing WORDS: the disk is let go of, and is the one it was; the kernel said none of these.
heard_nothing() {
  umount /mnt || fail "umount"
  [ "$(cat "$(far_device "$FAR")/devnum")" = "$number" ] || fail "the device is another one"
  dmesg | sed "1,/$(tail -c 40 /run/before | sed 's/[][\/.*^$]/./g')/d" >/run/kernel
  grep -iE "error|reset|disconnect|timed out|abort|$1" /run/kernel && fail "the kernel heard of it"
}
