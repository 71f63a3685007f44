# Two hosts in one guest that are not paired: lab3's daemon shares by a rule, desk's keeps the device attached in a session. The script
# after this one uses the disk.
make_host lab3
make_host desk

wait_for 15 has_disk || fail "no disk in the guest"
shared=$(basename "$(near_device 46f4:0001)") || fail "no stick in the guest"
cat >/run/lab3/farbus.toml <<'END'
plain.listen = ["127.0.0.1:3240"]
[[usb]]
class = "storage"
name = "stick"
END
cat >/run/desk/farbus.toml <<'END'
plain.listen = []
[[attach]]
target = "127.0.0.1:3240/stick"
via = "kernel"
grace = 60
END
share_by_rule "listening on"
