# Makes each confined process do system calls, as one that was taken over would (inject.c), and prints what this kernel answered: lines
# "call PROCESS NUMBER ANSWER" and "attempt PROCESS NAME ANSWER". The process goes on as if nothing had been.
echo "root:x:0:0::/root:/bin/sh" >/etc/passwd
truncate -s 1M /run/disk.img || fail "no image"
mkdir -p /run/folder || fail "no folder"
chmod 777 /run/folder

inject_into() {
  echo "landlock $1 $3"
  grep -q "^Seccomp:.*2$" "/proc/$2/status" || fail "$1 is not confined"
  grep -q "^CapEff:.*0000000000000000$" "/proc/$2/status" || fail "$1 has capabilities"
  inject "$2" all >/run/all || fail "inject into $1"
  inject "$2" attempts /run/folder >/run/attempts || fail "inject into $1"
  sed "s/^/call $1 /" /run/all
  sed "s/^/attempt $1 /" /run/attempts
  [ -z "$(ls -A /run/folder)" ] || fail "$1 has made $(ls -A /run/folder)"
}
# What the process said of files and connections when it confined itself.
landlock() { grep -q "within reach" "$1" && echo no || echo yes; }
# The number of the confined process whose role this is.
number_of() {
  farbus status --json >/run/status || fail "status"
  awk -v role="\"$1\"" '/^    "pid"/ { gsub(/[^0-9]/, ""); pid = $0 } /^    "role"/ && index($0, role) { print pid }' /run/status
}

rm -f /run/share.log
farbus share zero disk:/run/disk.img --listen "127.0.0.1:$PORT" >/run/share.log 2>&1 &
share_pid=$!
wait_for 30 grep -q "listening on" /run/share.log || fail "share: $(cat /run/share.log)"
inject_into share "$(number_of share)" "$(landlock /run/share.log)"
farbus list "127.0.0.1:$PORT" | grep -q zero || fail "the share serves no more: $(cat /run/share.log)"

ATTACH_OPTIONS="--via uas --grace 30"
attach_disk disk
inject_into attach "$(number_of attach)" "$(landlock /run/attach.log)"
dd if="/dev/$dev" of=/dev/null bs=64k 2>/dev/null || fail "the disk is read no more: $(cat /run/attach.log)"
detach

farbus page --listen 127.0.0.1:7240 >/run/page.log 2>&1 &
page_pid=$!
wait_for 30 grep -q "page at http://" /run/page.log || fail "page: $(cat /run/page.log)"
http=
for process in /proc/[0-9]*; do
  tr '\0' ' ' 2>/dev/null <"$process/cmdline" | grep -q " page-http" && http=$(basename "$process")
done
[ -n "$http" ] || fail "no page-http"
inject_into page-http "$http" "$(landlock /run/page.log)"
wget -q -O - http://127.0.0.1:7240/readyz | grep -q ready || fail "the page answers no more: $(cat /run/page.log)"

kill -INT "$page_pid"
wait "$page_pid"
kill -INT "$share_pid"
wait "$share_pid" || fail "farbus share ended with $?: $(cat /run/share.log)"
