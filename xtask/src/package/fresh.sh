# In a fresh Debian without systemd running: one command installs farbus, it works, and a purge leaves nothing but the user.
set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
list() {
    find / -xdev -not -path '/proc/*' -not -path '/dev/*' -not -path '/var/lib/dpkg/*' -not -path '/var/cache/*' -not -path '/var/log/*' \
        -not -path '/run/*' -not -path '/var/lib/apt/lists/*' -not -path '/root/*' -not -path '/tmp/*' -not -path '/etc/*-' -not -path '/etc/.pwd.lock' -not -path '/var/lib/systemd/deb-systemd-helper*' | sort
}
list >/root/before
apt-get install -q -y /root/farbus.deb
for path in /usr/bin/farbus /usr/bin/farbus-conform /usr/bin/farbus-bench /usr/bin/farbus-papers /etc/farbus/farbus.toml \
    /usr/share/man/man1/farbus-attach.1.gz /usr/share/man/man1/farbus-conform-exporter.1.gz \
    /usr/share/bash-completion/completions/farbus /usr/share/bash-completion/completions/farbus-conform \
    /usr/share/doc/farbus/book/first-steps.md; do
    [ -e "$path" ] || { echo "missing: $path"; exit 1; }
done
getent passwd farbus
[ "$(stat -c %U:%a /var/lib/farbus)" = farbus:700 ]
farbus --version
farbus bench list >/dev/null
farbus papers --list >/dev/null
[ "$(farbus conform --version)" = "$(farbus-conform --version)" ]
farbus conform exporter --list | grep -q '^list-framing '
farbus demo
apt-get purge -q -y farbus
list >/root/after
diff /root/before /root/after
getent passwd farbus
rm /root/before /root/after
