# This machine has one end of a bridge, named by DEVICE. The host says what to do with it.
attach "$DEVICE"
with_adapter
echo "address $(cat "/sys/class/net/$net/address")"
say attached
while read -r word; do
  case $word in
  leave)
    detach
    wait_for 10 no_adapter || fail "the adapter stays"
    ;;
  *) common "$word" || fail "what is '$word'?" ;;
  esac
  say "$word"
done
