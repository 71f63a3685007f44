# One host, desk, whose daemon keeps what the rig's host shares attached in a session. What follows this script uses the disk.
mkdir -p /run/desk/run
printf 'FARBUS_STATE=/run/desk/state FARBUS_NAME=desk XDG_RUNTIME_DIR=/run/desk/run' >/run/desk/env
# as HOST WORDS...: farbus there.
as() {
  host=$1
  shift
  env $(cat "/run/$host/env") farbus "$@"
}
cat >/run/desk/farbus.toml <<END
plain.listen = []
[[attach]]
target = "$EXPORTER:$PORT/disk"
grace = 60
$ATTACH
END

attach() {
  env $(cat /run/desk/env) farbus daemon --config /run/desk/farbus.toml >/run/attach.log 2>&1 &
  attach_pid=$!
}
detach() {
  as desk detach || fail "farbus detach"
  wait_for 10 no_port_in_use || fail "the port is still in use after detach"
}
