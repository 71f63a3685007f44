"""The `usbip` package of Python imports one disk and reads it: `importer.py PORT BUSID`."""

import sys

import usbip
from usbip import host
from usbip.classes.host import msc

TEST_UNIT_READY = bytes(6)
REQUEST_SENSE = bytes([3, 0, 0, 0, 18, 0])


def main():
    transport = usbip.USBIP("127.0.0.1", int(sys.argv[1]))
    (offered,) = [offer for offer in host.list_devices(transport) if offer["busid"] == sys.argv[2]]
    with msc.MSCDriver.open(offered["idVendor"], offered["idProduct"], busid=sys.argv[2], transport=transport) as drive:
        while drive.command_out(TEST_UNIT_READY):
            drive.command_in(REQUEST_SENSE, REQUEST_SENSE[4])
        blocks, size = drive.read_capacity()
        drive.read_blocks(0, 8, size)
        # Beyond the end: the device halts its pipe.
        try:
            drive.read_blocks(blocks, 1, size)
        except OSError:
            pass
        drive.read_blocks(0, 1, size)


main()
