uname -r
cut -d ' ' -f 1 /proc/modules
[ "$(nc "$EXPORTER" "$PORT" </dev/null)" = "the host" ] || fail "no way to the host"
for tool in usbip usbreset eject e2fsck mkfs.ext4 testusb; do
  "/usr/bin/$tool" -h >/run/out 2>&1
  # 126 and 127: the program did not start, which also happens if a library is missing.
  [ $? -ge 126 ] && fail "$tool does not start: $(cat /run/out)"
done
true
