# The kit's exporters, each attached by the kernel's own tools. What the tool started cannot be interrupted: it detaches.
echo "RELEASE $(uname -r)"
cat >/run/attach-one <<'END'
#!/bin/sh
ports() { cat /sys/devices/platform/vhci_hcd.*/status* | awk '$3 != "004" && $1 != "hub" { print $2 }'; }
trap 'for port in $(ports); do usbip detach -p "$port"; done; exit 0' INT
usbip --tcp-port "$1" attach -r 127.0.0.1 -b "$2" || exit 1
while :; do sleep 1; done
END
chmod +x /run/attach-one
farbus conform importer --listen 127.0.0.1:3250 --timeout 10 --work 8 --with '/run/attach-one {port} {busid}' --json >/run/result 2>/run/conform.log
[ $? -le 1 ] || fail "conform importer: $(cat /run/conform.log)"
echo "RESULT $(tr -d '\n' </run/result)"
