/* The same module as xor.c, over shared memory: cc -O2 -o xor.ring xor_ring.c. docs/modules.md says what lies where. */
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { START = 1, MESSAGE = 2, TIME = 3, DONE = 4, PASSED = 6 };
enum { ABOVE = 0, BELOW = 1, PEER = 2 };
/* Where the counters lie, in words. */
enum { RING = 3, TOLD_AT = 4, SAID_AT = 5, OWN_AT = 8, TOLD = 16, HOST_SLEEPS = 17, READ = 18, SAID = 32, MODULE_SLEEPS = 33 };

struct descriptor { uint32_t at, bytes, region, room; };

static uint8_t *memory;
static _Atomic uint32_t *words;

static void wait_for_a_ring(_Atomic uint32_t *counter, uint32_t seen) {
    uint8_t bells[64];
    /* One ring for all that was said until now, if the host sleeps. */
    if (atomic_exchange(words + HOST_SLEEPS, 0)) (void)!write(1, "\1", 1);
    atomic_store(words + MODULE_SLEEPS, 1);
    if (atomic_load(counter) == seen && read(0, bells, sizeof bells) <= 0) exit(0);
    atomic_store(words + MODULE_SLEEPS, 0);
}

static void say(struct descriptor what) {
    uint32_t said = words[SAID], ring = words[RING];
    struct descriptor *descriptors = (struct descriptor *)(memory + words[SAID_AT]);
    for (uint32_t seen = atomic_load(words + READ); said - seen == ring; seen = atomic_load(words + READ))
        wait_for_a_ring(words + READ, seen);
    descriptors[said % ring] = what;
    atomic_store(words + SAID, said + 1);
}

int main(void) {
    struct stat size;
    if (fstat(3, &size)) return 1;
    memory = mmap(0, (size_t)size.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0);
    if (memory == MAP_FAILED) return 1;
    words = (_Atomic uint32_t *)memory;
    if (memcmp(memory, "farbring", 8) || words[2] != 1) return 1;
    const struct descriptor *told = (struct descriptor *)(memory + words[TOLD_AT]);
    const struct descriptor done = {words[OWN_AT], 9, 0, 0};
    uint8_t key = 255, version = 1;
    for (uint32_t heard = 0;; heard++) {
        while (atomic_load(words + TOLD) == heard) wait_for_a_ring(words + TOLD, heard);
        struct descriptor what = told[heard % words[RING]];
        uint8_t *frame = memory + what.at;
        uint16_t length;
        if (frame[0] == START) {
            version = frame[1];
            memcpy(&length, frame + 4, 2);
            frame[what.bytes] = 0; /* There is room for more than was told. */
            if (6u + length < what.bytes) key = (uint8_t)atoi((char *)frame + 6 + length);
            what.bytes = 0;
        } else if (frame[0] == MESSAGE && frame[1] != PEER) {
            memcpy(&length, frame + 20, 2);
            frame[1] = frame[1] == ABOVE ? BELOW : ABOVE;
            if (key == 0 && version >= 2) { /* The data as it is: the host still has it. */
                frame[0] = PASSED;
                what.bytes = 22u + length;
            }
            for (uint32_t at = 22u + length; at < what.bytes; at++) frame[at] ^= key;
        } else {
            what.bytes = 0;
        }
        say(what); /* Where it was given; of no bytes: it is given back. */
        memory[done.at] = DONE;
        memset(memory + done.at + 1, 255, 8);
        say(done);
    }
}
