# One host, desk, whose daemon keeps what the rig's host shares attached in a session. What follows this script uses the disk.
make_host desk
cat >/run/desk/farbus.toml <<END
plain.listen = []
[[attach]]
target = "$EXPORTER:$PORT/disk"
grace = 60
$ATTACH
END
