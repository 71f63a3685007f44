#!/usr/bin/env python3
"""A module in thirty lines: every byte of data is xored with a number that both halves are told. docs/modules.md says what travels."""
import struct
import sys

START, MESSAGE, TIME, DONE, FAIL = 1, 2, 3, 4, 5
ABOVE, BELOW, PEER = 0, 1, 2
NEVER = 2**64 - 1


def take(count):
    data = sys.stdin.buffer.read(count)
    if len(data) < count:
        sys.exit()
    return data


def say(what, words):
    sys.stdout.buffer.write(struct.pack("<IB", 1 + len(words), what) + words)


key = 0
while True:
    (length,) = struct.unpack("<I", take(4))
    frame = take(length)
    if frame[0] == START:
        failed = struct.unpack_from("<H", frame, 4)[0]
        options = frame[6 + failed:].decode()
        key = int(options or "255")
        table = bytes(byte ^ key for byte in range(256))
    elif frame[0] == MESSAGE:
        come, kind, pair, now, number, head = struct.unpack_from("<BBBQQH", frame, 1)
        data = frame[22 + head:].translate(table)
        if come != PEER:
            go = BELOW if come == ABOVE else ABOVE
            say(MESSAGE, struct.pack("<BBBQQH", go, kind, pair, 0, number, head) + frame[22:22 + head] + data)
    say(DONE, struct.pack("<Q", NEVER))
    sys.stdout.buffer.flush()
