# This machine is a host of a plan, NAME. Its daemon brings its links up.
export FARBUS_STATE=/run/state FARBUS_NAME="$NAME" XDG_RUNTIME_DIR=/run
here=$($ip -4 -o addr show dev eth0 | sed 's/.* inet \([0-9.]*\).*/\1/')
cat >/run/farbus.toml <<'END'
[secure]
listen = ["0.0.0.0:3241"]
[topology]
plan = "plan.toml"
END
cat >/run/line.toml <<'END'
network = "line"
hosts = ["left", "right"]
END
say ready
while read -r word code; do
  case $word in
  code)
    farbus pair --listen "$here:3242" --json >/run/code &
    pair_pid=$!
    wait_for 20 grep -q '"code"' /run/code || fail "no code is shown"
    say code "$here" "$(sed -n 's/.*"code":"\([^"]*\)".*/\1/p' /run/code | head -n 1)"
    continue
    ;;
  join) farbus pair $code || fail "pair" ;;
  joined) wait "$pair_pid" || fail "the host that waited did not pair" ;;
  daemon)
    rm -f /run/attach.log
    farbus daemon --config /run/farbus.toml >/run/attach.log 2>&1 &
    wait_for 20 grep -q "for paired hosts" /run/attach.log || fail "daemon"
    ;;
  # Started before the other host: nothing hangs, and no link is up.
  early) farbus topology up /run/line.toml --wait 1 && fail "up, with nobody at the other end" ;;
  links)
    farbus topology up /run/line.toml || fail "up"
    with_adapter
    ;;
  shown) farbus topology status ;;
  restart) farbus daemon restart || fail "restart" ;;
  down)
    farbus topology down || fail "down"
    wait_for 10 no_adapter || fail "the adapter stays"
    ;;
  *) common "$word" || fail "what is '$word'?" ;;
  esac
  say "$word"
done
