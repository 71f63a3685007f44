# Static programs where nothing else is: no library, no shell, no other program. The tools used here are this machine's.
#   $1  a folder with the program and, beside it, farbus-conform; it becomes the root
#   $2  the program in it
#   …   its environment
set -eu
cd "$1"
program=$2
shift 2
environment=$*
ip link set lo up
mkdir -p proc dev tmp run at
mount -t proc proc proc
mount --bind /dev dev
chroot=$(command -v chroot)
farbus() { env -i $environment "$chroot" . "$program" "$@"; }
# Waits for a condition, 60 s at most.
until_true() {
    end=$(($(date +%s) + 60))
    until "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt $end ] || { echo "not in 60 s: $*"; cat share.log attach.log; exit 1; }
        sleep 0.2
    done
}

farbus --version
farbus demo
farbus conform exporter --list >checks
grep -q '^list-framing ' checks

head -c 16M /dev/urandom >disk.img
farbus share disk:/disk.img >share.log 2>&1 &
until_true grep -q listening share.log

farbus attach disk --via nbd --socket /tmp/nbd.sock >attach.log 2>&1 &
attach=$!
until_true nbdinfo --size 'nbd+unix:///?socket=tmp/nbd.sock'
nbdcopy 'nbd+unix:///?socket=tmp/nbd.sock' copy.img
cmp disk.img copy.img
farbus detach
wait $attach
echo "by NBD: the same 16 MiB"

farbus attach disk --via fuse --at /at >attach.log 2>&1 &
attach=$!
until_true sh -c '[ -n "$(ls at)" ]'
cmp disk.img at/*
farbus detach
wait $attach
echo "by FUSE: the same 16 MiB"
# The share ends with the process namespace.
