/* The same module as xor.py: cc -O2 -o xor xor.c. docs/modules.md says what travels. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { START = 1, MESSAGE = 2, TIME = 3, DONE = 4 };
enum { ABOVE = 0, BELOW = 1, PEER = 2 };

static uint32_t le(const uint8_t *bytes, int count) {
    uint32_t value = 0;
    while (count--) value = value << 8 | bytes[count];
    return value;
}

int main(void) {
    static uint8_t frame[64 << 20];
    uint8_t head[4], key = 255;
    const uint8_t done[13] = {9, 0, 0, 0, DONE, 255, 255, 255, 255, 255, 255, 255, 255};
    while (fread(head, 1, 4, stdin) == 4) {
        uint32_t length = le(head, 4);
        if (length == 0 || length > sizeof frame - 1 || fread(frame, 1, length, stdin) != length) return 1;
        if (frame[0] == START) {
            uint32_t options = 6 + le(frame + 4, 2);
            frame[length] = 0;
            if (options < length) key = (uint8_t)atoi((char *)frame + options);
        } else if (frame[0] == MESSAGE && frame[1] != PEER) {
            frame[1] = frame[1] == ABOVE ? BELOW : ABOVE;
            for (uint32_t at = 22 + le(frame + 20, 2); key && at < length; at++) frame[at] ^= key;
            fwrite(head, 1, 4, stdout);
            fwrite(frame, 1, length, stdout);
        }
        fwrite(done, 1, sizeof done, stdout);
        fflush(stdout);
    }
    return 0;
}
