# Two processors and control groups of version 2: a pipe takes the second for itself.
mount -t cgroup2 none /sys/fs/cgroup || fail "no control groups"
cd /sys/fs/cgroup || fail "nowhere to go"
start() {
  farbus pipe --here can,traffic=10 --can 500000 --rate 400 --buffer 40 --execution-us 5000 --cpus 1 "$@" &
  pipe=$!
  # The process that keeps the rights has taken the processor; which process that is does not matter.
  is_there() { ours=$(echo farbus-*-1) && [ "$(cat "$ours/cpuset.cpus.partition")" = root ] && [ -n "$(deadlines)" ]; }
  wait_for 30 is_there || fail "no partition: $(cat farbus-*/cpuset.cpus.partition)"
}
# For each thread that keeps a pipe's promise, field 41 of its status: the policy (6 is SCHED_DEADLINE).
deadlines() {
  for thread in /proc/"$pipe"/task/*; do
    case $(cat "$thread/comm") in pipe-*) sed 's/.*) //' "$thread/stat" | cut -d ' ' -f 39 ;; esac
  done
}
is_6() { [ "$(deadlines | sort -u)" = 6 ]; }
start --report /run/report.json
wait_for 10 is_6 || fail "the policies are $(deadlines)"
echo "partition $(cat "$ours/cpuset.cpus.partition")"
echo "owns $(cat "$ours/cpuset.cpus.effective")"
echo "inside $(grep -c "^$pipe\$" "$ours/cgroup.procs")"
echo "policies $(deadlines | sort -u)"
sleep 1
kill -INT "$pipe"
wait "$pipe"
# An emulated machine cannot show whether deadlines are met, so that is not checked.
grep -q '"is_kept"' /run/report.json || fail "no report"
echo "messages $(sed -n 's/.*"messages": \([0-9]*\),/\1/p' /run/report.json)"
echo "left $(ls -d farbus-* 2>/dev/null | wc -l)"
echo "effective $(cat cpuset.cpus.effective)"
# After a kill, the pipe's other process cleans up; if that is killed, too, the next pipe does.
start
kill -KILL "$pipe"
wait "$pipe"
no_set() { [ -z "$(ls -d farbus-* 2>/dev/null)" ]; }
wait_for 10 no_set || fail "its other half left $(ls -d farbus-*)"
start --no-sandbox
kill -KILL "$pipe"
wait "$pipe"
start
wait_for 10 is_6 || fail "the policies are $(deadlines)"
echo "after-kill $(cat "$ours/cpuset.cpus.partition")"
[ "$(ls -d farbus-* | wc -l)" = 1 ] || fail "what was left is still there: $(ls -d farbus-*)"
kill -INT "$pipe"
wait "$pipe"
farbus pipe --here can --can 500000 --rate 400 --buffer 40 --execution-us 5000 --cpus 0,1 >/run/two 2>&1 && fail "two of them"
grep -q "keeps a process together" /run/two || fail "it said $(cat /run/two)"
