"""Devices of the `usbip` package of Python, for `farbus attach`: `server.py IMAGE`; says where it listens, serves until killed."""

import os
import socket
import sys
import threading

import usbip
from usbip.classes.device.hid import HID, keyboard_report_descriptor
from usbip.classes.device.msc import MSC

BLOCK_BYTES = 512


class File:
    """An image as the store of a disk."""

    block_size = BLOCK_BYTES

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR)
        self.num_blocks = os.fstat(self.file).st_size // BLOCK_BYTES

    def read(self, lba, count):
        return os.pread(self.file, count * BLOCK_BYTES, lba * BLOCK_BYTES)

    def write(self, lba, count, data):
        os.pwrite(self.file, data[: count * BLOCK_BYTES], lba * BLOCK_BYTES)


class Keyboard(HID):
    report_descriptor = keyboard_report_descriptor()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    transport = usbip.USBIP("127.0.0.1", free_port())
    disk = usbip.USBDevice(0x1209, 0x0001, manufacturer="Python", product="Py Disk", serial="0123456789AB")
    disk.set_speed(usbip.SPEED_HIGH)
    disk.add(MSC(File(sys.argv[1])))
    keys = usbip.USBDevice(0x1209, 0x0002, product="Py Keyboard")
    keyboard = Keyboard()
    keys.add(keyboard)
    with disk.plug(via=transport), keys.plug(via=transport):
        print(f"listening on 127.0.0.1:{transport.port}", flush=True)
        # Each line on standard input is key codes to press, one after the other; its end is ours.
        for line in sys.stdin:
            for code in bytes.fromhex(line):
                keyboard.send_report(bytes([0, 0, code, 0, 0, 0, 0, 0]))
                keyboard.send_report(bytes(8))
        threading.Event().wait()


main()
