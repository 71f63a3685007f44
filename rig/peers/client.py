"""What the `usbip` package of Python sees of a `farbus share`: `client.py PORT disk|keyboard|zero`, one line of JSON at the end."""

import hashlib
import json
import sys

import usbip
from usbip import host
from usbip.classes.host import hid, msc
from usbip.core import DT_ENDPOINT, iter_descriptors

BLOCKS_A_READ = 64
BULK_BYTES = 65536
TEST_UNIT_READY = bytes(6)
REQUEST_SENSE = bytes([3, 0, 0, 0, 18, 0])
ISO_PACKETS = 16


def disk(transport, offered):
    """Reads all of it, writes its first and last block anew, reads those back."""
    with msc.MSCDriver.open(offered["idVendor"], offered["idProduct"], busid=offered["busid"], transport=transport) as drive:
        vendor = drive.inquiry()[8:16].decode().strip()
        # A disk that has just been plugged in says so once; a host asks until it is ready.
        while drive.command_out(TEST_UNIT_READY):
            drive.command_in(REQUEST_SENSE, REQUEST_SENSE[4])
        blocks, size = drive.read_capacity()
        digest = hashlib.sha256()
        for lba in range(0, blocks, BLOCKS_A_READ):
            digest.update(drive.read_blocks(lba, min(BLOCKS_A_READ, blocks - lba), size))
        for lba, byte in ((0, b"\xa5"), (blocks - 1, b"\x5a")):
            drive.write_blocks(lba, byte * size, size)
            if drive.read_blocks(lba, 1, size) != byte * size:
                raise SystemExit(f"block {lba} does not read back")
        # Beyond the end: the device halts its pipe, and goes on after that is cleared.
        try:
            drive.read_blocks(blocks, 1, size)
            raise SystemExit("a read beyond the end succeeded")
        except OSError:
            pass
        if drive.read_blocks(0, 1, size) != b"\xa5" * size:
            raise SystemExit("no read after a refused one")
        return {"inquiry": vendor, "bytes": blocks * size, "sha256": digest.hexdigest(), **descriptors(drive.handle)}


def keyboard(transport, offered):
    """Reads reports until a key has been pressed and let go as often as there are characters."""
    with hid.HIDDriver.open(offered["idVendor"], offered["idProduct"], busid=offered["busid"], transport=transport) as keys:
        size = keys.input_report_size()
        print("ready", flush=True)
        pressed = []
        for report in keys.reports():
            if report[2] == 0x28:  # Enter
                break
            if report[2]:
                pressed.append(report[2])
        return {"report_bytes": size, "pressed": pressed, **descriptors(keys.handle)}


def zero(transport, offered):
    """Moves data on every endpoint of the source/sink device, isochronous ones included."""
    moved = {}
    with usbip.open(offered["idVendor"], offered["idProduct"], busid=offered["busid"], transport=transport) as handle:
        for address, attributes, packet_bytes in endpoints(handle):
            kind = {1: "isochronous", 2: "bulk", 3: "interrupt"}[attributes & 3]
            into_host = bool(address & 0x80)
            if kind == "isochronous":
                if into_host:
                    packets = handle.iso_in(address, packet_bytes, ISO_PACKETS, interval=1)
                else:
                    done = handle.iso_out(address, [bytes(packet_bytes)] * ISO_PACKETS, interval=1)
                    packets = [bytes(actual) for _offset, _length, actual, status in done if status == 0]
                count = sum(len(packet) for packet in packets)
            elif into_host:
                read = handle.bulk_in if kind == "bulk" else handle.interrupt_in
                count = len(read(address, BULK_BYTES if kind == "bulk" else packet_bytes))
            else:
                write = handle.bulk_out if kind == "bulk" else handle.interrupt_out
                count = write(address, bytes(BULK_BYTES if kind == "bulk" else packet_bytes))
            moved[f"{kind} {'in' if into_host else 'out'}"] = count
        return {"moved": moved, **descriptors(handle)}


def endpoints(handle):
    """Address, attributes and packet size of each endpoint in the first alternate setting."""
    head = usbip.ConfigurationDescriptor.parse(handle.control(0x80, 6, 0x0200, 0, 9))
    whole = handle.control(0x80, 6, 0x0200, 0, head.wTotalLength)
    found = {}
    for raw in iter_descriptors(whole):
        if raw[1] == DT_ENDPOINT:
            endpoint = usbip.EndpointDescriptor.parse(raw)
            found.setdefault(
                endpoint.bEndpointAddress, (endpoint.bmAttributes, endpoint.wMaxPacketSize & 0x7FF)
            )
    return [(address, *rest) for address, rest in found.items()]


def descriptors(handle):
    device = handle.device_descriptor
    head = usbip.ConfigurationDescriptor.parse(handle.control(0x80, 6, 0x0200, 0, 9))
    whole = handle.control(0x80, 6, 0x0200, 0, head.wTotalLength)
    product = handle.control(0x80, 6, 0x0300 | device.iProduct, 0x0409, 255)[2:].decode("utf-16-le")
    return {"product": product, "configuration_bytes": len(whole), "declared_bytes": head.wTotalLength}


def main():
    transport = usbip.USBIP("127.0.0.1", int(sys.argv[1]))
    what, interface_class = {"disk": (disk, 8), "keyboard": (keyboard, 3), "zero": (zero, 255)}[sys.argv[2]]
    offers = host.list_devices(transport)
    print(f"listed {len(offers)}: {offers}", file=sys.stderr)
    (offered,) = [offer for offer in offers if offer["interfaces"][0][0] == interface_class]
    print(json.dumps({"listed": len(offers), **what(transport, offered)}))


main()
