# Each check of the kit by itself against DEVICE, so that one that crashes the kernel is known by its name. DONE: those of earlier boots.
echo "RELEASE $(uname -r)"
farbus conform exporter --list --json >/run/checks || fail "conform --list"
for id in $(sed -n 's/^ *"id": "\(.*\)".*$/\1/p' /run/checks); do
  case " $DONE " in *" $id "*) continue ;; esac
  echo "TRYING $id"
  farbus conform exporter "$EXPORTER:$PORT" --busid "$DEVICE" --only "$id" --json >/run/result 2>/run/conform.log
  [ $? -le 1 ] || fail "conform $id: $(cat /run/conform.log)"
  echo "RESULT $(tr -d '\n' </run/result)"
done
