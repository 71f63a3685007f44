attach_disk 1-1
(while dd if="/dev/$dev" of=/dev/null bs=128k iflag=direct 2>/dev/null; do :; done) &
sleep 0.5
say reading
sleep 60
