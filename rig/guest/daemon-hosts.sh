# Hosts in one guest, each with a daemon. The script after this one says what they do.
# make_host NAME
make_host() {
  mkdir -p "/run/$1/run"
  printf 'FARBUS_STATE=/run/%s/state FARBUS_NAME=%s XDG_RUNTIME_DIR=/run/%s/run' "$1" "$1" "$1" >"/run/$1/env"
}
# as HOST WORDS...: runs farbus as this host.
as() {
  host=$1
  shift
  env $(cat "/run/$host/env") farbus "$@"
}
# share_by_rule WORDS: lab3's daemon takes the stick; its log has WORDS when it listens.
share_by_rule() {
  rm -f /run/share.log
  env $(cat /run/lab3/env) farbus daemon --config /run/lab3/farbus.toml >/run/share.log 2>&1 &
  share_pid=$!
  wait_for 20 grep -q "$1" /run/share.log || fail "daemon: $(cat /run/share.log)"
  wait_for 20 no_disk || fail "its driver still has the stick that a rule shares: $(cat /run/share.log)"
}
# attach: starts desk's daemon, which attaches what its configuration names. detach: detaches it.
attach() {
  rm -f /run/attach.log
  env $(cat /run/desk/env) farbus daemon --config /run/desk/farbus.toml >/run/attach.log 2>&1 &
  attach_pid=$!
}
detach() {
  as desk detach || fail "farbus detach"
  wait_for 10 no_port_in_use || fail "the port is still in use after detach"
}
