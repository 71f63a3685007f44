unshare_usb usb-storage
