# One host, desk. Its daemon keeps attached in a session what the rig's host shares. The script after this one uses the disk.
make_host desk
cat >/run/desk/farbus.toml <<END
plain.listen = []
[[attach]]
target = "$EXPORTER:$PORT/disk"
grace = 60
$ATTACH
END
