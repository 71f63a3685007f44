# The link goes down for 6 s, longer than TCP here waits for an answer, in the middle of writing and reading; nobody above hears of it.
# What comes before this script has two daemons and the disk.
attach_disk "${DEVICE:-1-1}"
mount -t ext4 "/dev/$dev" /mnt || fail "mount"
number=$(cat "$(far_device 46f4:0001)/devnum")
dmesg | tail -n 1 >/run/before
linked() { grep -c "linked again" /run/attach.log; }
for pass in $(seq "$TIMES"); do
  for way in write read; do
    links=$(linked)
    case $way in
    write) write_tree "/mnt/guest-$pass" & ;;
    read) (
      echo 3 >/proc/sys/vm/drop_caches
      cd "/mnt/guest-$pass" && sha256sum -c MANIFEST >/run/check 2>&1
    ) & ;;
    esac
    worker=$!
    sleep 0.3
    ip link set lo down || fail "the link does not go down"
    sleep 6
    ip link set lo up
    wait $worker || fail "$way under a cut: $(grep -v OK /run/check | head -n 5)"
    again() { [ "$(linked)" -gt "$links" ]; }
    wait_for 20 again || fail "no new link after cut $pass: $(cat /run/attach.log)"
  done
done
umount /mnt || fail "umount"
[ "$(cat "$(far_device 46f4:0001)/devnum")" = "$number" ] || fail "the device is another one"
dmesg | sed "1,/$(tail -c 40 /run/before | sed 's/[][\/.*^$]/./g')/d" >/run/kernel
grep -iE "error|reset|disconnect|timed out|abort" /run/kernel && fail "the kernel heard of it"
echo "note: $((2 * TIMES)) cuts of 6 s, $(linked) new links"
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
