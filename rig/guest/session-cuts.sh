# The link is down for 6 s, longer than TCP waits for an answer here, during writes and reads; no user of the disk notices.
# The script before this one provides two daemons and the disk.
mount_disk "${DEVICE:-1-1}"
cut() {
  before=$(links)
  ip link set lo down || fail "the link does not go down"
  sleep 6
  ip link set lo up
  again() { [ "$(links)" -gt "$before" ]; }
  wait_for 20 again || fail "no new link after a cut: $(cat /run/attach.log)"
}
under_load "$TIMES" cut
heard_nothing "timed out"
echo "note: $((2 * TIMES)) cuts of 6 s, $(links) new links"
detach
wait_for 5 no_disk || fail "the disk stayed after detach"
