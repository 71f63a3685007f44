# Two hosts in one guest that know each other: lab3's daemon shares by a rule, desk's keeps it attached. What follows this script
# uses the disk.
for host in lab3 desk; do
  mkdir -p "/run/$host/run"
  printf 'FARBUS_STATE=/run/%s/state FARBUS_NAME=%s XDG_RUNTIME_DIR=/run/%s/run' $host $host $host >"/run/$host/env"
done
# as HOST WORDS...: farbus there.
as() {
  host=$1
  shift
  env $(cat "/run/$host/env") farbus "$@"
}

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
cat >/run/desk/farbus.toml <<'END'
plain.listen = []
[[attach]]
target = "lab3/stick"
via = "kernel"
reason = "the rig"
END

env $(cat /run/lab3/env) farbus daemon --config /run/lab3/farbus.toml >/run/share.log 2>&1 &
share_pid=$!
wait_for 20 grep -q "for paired hosts" /run/share.log || fail "daemon: $(cat /run/share.log)"
wait_for 20 no_disk || fail "its driver still has the stick that a rule shares: $(cat /run/share.log)"

attach() {
  env $(cat /run/desk/env) farbus daemon --config /run/desk/farbus.toml >/run/attach.log 2>&1 &
  attach_pid=$!
}
detach() {
  as desk detach || fail "farbus detach"
  wait_for 10 no_port_in_use || fail "the port is still in use after detach"
}
