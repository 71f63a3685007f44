# Two paired hosts in one guest: lab3's daemon shares by a rule, and desk's daemon keeps the device attached. The script after this one
# uses the disk.
make_host lab3
make_host desk

wait_for 15 has_disk || fail "no disk in the guest"
shared=$(basename "$(near_device 46f4:0001)") || fail "no stick in the guest"
as lab3 pair --listen 127.0.0.1:3242 --json >/run/code &
pair_pid=$!
wait_for 20 grep -q '"code"' /run/code || fail "no code is shown"
as desk pair 127.0.0.1:3242 "$(sed -n 's/.*"code":"\([^"]*\)".*/\1/p' /run/code | head -n 1)" || fail "pair"
wait $pair_pid || fail "the host that waited did not pair"
as lab3 allow desk all || fail "allow"

cat >/run/lab3/farbus.toml <<'END'
plain.listen = []
[secure]
listen = ["127.0.0.1:3241"]
[[usb]]
class = "storage"
name = "stick"
END
cat >/run/desk/farbus.toml <<END
plain.listen = []
[[attach]]
target = "lab3/stick"
via = "kernel"
reason = "the rig"
grace = ${GRACE:-20}
END

share_by_rule "for paired hosts"
