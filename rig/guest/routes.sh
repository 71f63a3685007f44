# The command's tests of the table of routes, those that need this kernel's vhci. ROUTES says which, TESTS is the program with the tests and
# BUILT_FARBUS the path at which it looks for farbus.
echo "root:x:0:0::/root:/bin/sh" >/etc/passwd
mkdir -p "$(dirname "$BUILT_FARBUS")" && ln -s /usr/bin/farbus "$BUILT_FARBUS" || fail "no farbus"
chmod 1777 /tmp
# One after the other: each looks for a disk of the same size.
FARBUS_ROUTES=$ROUTES FARBUS_REQUIRE_RIG=1 RUST_BACKTRACE=1 "$TESTS" routes:: --skip interop_shows --test-threads=1 --nocapture ||
  fail "the tests of the command"
