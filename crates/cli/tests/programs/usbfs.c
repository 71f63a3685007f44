/* A statically linked program that speaks to usbfs by itself. `usbfs narrow NODE` asks as a 32-bit program does;
 * `usbfs garbage NODE SEED SECONDS` sends commands that make no sense, and then one that does; `usbfs line NODE PIPE`
 * waits for data of a serial line with a loopback plug, and sends a word each time that it reads an 'h' from the pipe. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/usbdevice_fs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s (errno %d)\n", __LINE__, #what, errno); exit(1); } } while (0)

/* GET_DESCRIPTOR of the device (USB 2.0 section 9.4.3). */
#define SETUP {0x80, 6, 0, 1, 0, 0, 18, 0}

/* The structures of a 32-bit program (`struct usbdevfs_*32` of the kernel). */
struct control32 { uint8_t setup[8]; uint32_t timeout, data; };
struct bulk32 { uint32_t endpoint, length, timeout, data; };
struct urb32 {
    uint8_t type, endpoint;
    int32_t status;
    uint32_t flags, buffer;
    int32_t length, actual, start_frame, packets, errors;
    uint32_t signal, context;
};

/* The system call of 32-bit programs: ioctl is number 54. Negative: an error. */
static int ioctl32(int fd, uint32_t command, void *argument)
{
    int result;
    __asm__ volatile("int $0x80" : "=a"(result)
                     : "a"(54), "b"(fd), "c"(command), "d"((uint32_t)(uintptr_t)argument)
                     : "memory", "r8", "r9", "r10", "r11");
    return result;
}

static int narrow(int fd)
{
    uint8_t *low = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    CHECK(low != MAP_FAILED);
    uint32_t at = (uint32_t)(uintptr_t)low, *word = (uint32_t *)low;

    *word = 0;
    CHECK(ioctl32(fd, _IOR('U', 15, uint32_t), word) == 0);
    CHECK(ioctl32(fd, _IOR('U', 26, uint32_t), word) == 0 && (*word & 1));

    struct control32 *control = (void *)low;
    *control = (struct control32){SETUP, 1000, at + 1024};
    CHECK(ioctl32(fd, _IOWR('U', 0, struct control32), control) == 18);
    CHECK(low[1024] == 18 && low[1025] == 1 && low[1032] == 0x25 && low[1033] == 0x05);

    struct bulk32 *bulk = (void *)low;
    *bulk = (struct bulk32){0x81, 512, 1000, at + 1024};
    memset(low + 1024, 0xaa, 513);
    CHECK(ioctl32(fd, _IOWR('U', 2, struct bulk32), bulk) == 512);
    CHECK(low[1024 + 62] == 62 && low[1024 + 63] == 0 && low[1024 + 512] == 0xaa);

    struct urb32 *urb = (void *)low;
    *urb = (struct urb32){.type = USBDEVFS_URB_TYPE_BULK, .endpoint = 0x81, .buffer = at + 1024, .length = 512,
                          .context = 0x12345678, .status = 99};
    memset(low + 1024, 0xaa, 513);
    CHECK(ioctl32(fd, _IOR('U', 10, struct urb32), urb) == 0);
    struct pollfd wait = {.fd = fd, .events = POLLOUT};
    CHECK(poll(&wait, 1, 10000) == 1 && wait.revents == POLLOUT);
    /* The kernel writes four bytes of a pointer, not eight. */
    uint32_t *name = (uint32_t *)(low + 512);
    name[0] = 0, name[1] = 0xdeadbeef;
    CHECK(ioctl32(fd, _IOW('U', 13, uint32_t), name) == 0);
    CHECK(name[0] == at && name[1] == 0xdeadbeef);
    CHECK(urb->status == 0 && urb->actual == 512 && urb->context == 0x12345678);
    CHECK(low[1024 + 62] == 62 && low[1024 + 512] == 0xaa);
    CHECK(ioctl32(fd, _IOW('U', 13, uint32_t), name) == -EAGAIN);

    urb->endpoint = 0x82, urb->type = USBDEVFS_URB_TYPE_INTERRUPT;
    CHECK(ioctl32(fd, _IO('U', 11), urb) == -EINVAL);
    puts("narrow");
    return 0;
}

static uint64_t state;

static uint32_t any(uint32_t below)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (state >> 32) % below;
}

static void nothing(int signal) { (void)signal; }

/* Something that may be an address: of memory, of none, or of a part of it. */
static uint64_t address(uint8_t *memory, size_t length)
{
    switch (any(8)) {
    case 0: return any(4096);
    case 1: return (uint64_t)any(UINT32_MAX) << 32 | any(UINT32_MAX);
    case 2: return (uint64_t)memory + length - any(64);
    default: return (uint64_t)memory + any(length / 2);
    }
}

static uint32_t length(void)
{
    static const uint32_t some[] = {0, 1, 8, 63, 64, 512, 1023, 4096, 65536, 1 << 20, (16 << 20) + 1, INT32_MAX};
    return any(4) ? some[any(sizeof some / sizeof *some)] : any(UINT32_MAX);
}

static int garbage(const char *path, uint64_t seed, int seconds)
{
    static const uint64_t commands[] = {
        USBDEVFS_CONTROL, USBDEVFS_BULK, USBDEVFS_RESETEP, USBDEVFS_SETINTERFACE, USBDEVFS_SETCONFIGURATION,
        USBDEVFS_GETDRIVER, USBDEVFS_SUBMITURB, USBDEVFS_SUBMITURB, USBDEVFS_SUBMITURB, USBDEVFS_DISCARDURB,
        USBDEVFS_DISCARDURB, USBDEVFS_REAPURB, USBDEVFS_REAPURBNDELAY, USBDEVFS_REAPURBNDELAY, USBDEVFS_DISCSIGNAL,
        USBDEVFS_CLAIMINTERFACE, USBDEVFS_RELEASEINTERFACE, USBDEVFS_CONNECTINFO, USBDEVFS_IOCTL, USBDEVFS_HUB_PORTINFO,
        USBDEVFS_RESET, USBDEVFS_CLEAR_HALT, USBDEVFS_DISCONNECT, USBDEVFS_CONNECT, USBDEVFS_CLAIM_PORT,
        USBDEVFS_RELEASE_PORT, USBDEVFS_GET_CAPABILITIES, USBDEVFS_DISCONNECT_CLAIM, USBDEVFS_ALLOC_STREAMS,
        USBDEVFS_FREE_STREAMS, USBDEVFS_DROP_PRIVILEGES, USBDEVFS_GET_SPEED, USBDEVFS_CONNINFO_EX(64)};
    static const uint8_t endpoints[] = {0x00, 0x80, 0x01, 0x81, 0x02, 0x82, 0x03, 0x83, 0x0f, 0x70, 0xff};
    const size_t bytes = 1 << 21;
    uint8_t *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    /* Commands that wait are interrupted. */
    struct sigaction action = {.sa_handler = nothing};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    int fds[4] = {-1, -1, -1, -1};
    state = seed * 0x9e3779b97f4a7c15 + 1;
    unsigned long sent = 0, taken = 0;
    time_t end = time(NULL) + seconds;
    while (time(NULL) < end) {
        int *fd = &fds[any(4)];
        if (*fd < 0 || any(200) == 0) {
            if (*fd >= 0)
                close(*fd);
            *fd = open(path, any(10) ? O_RDWR : O_RDONLY);
            CHECK(*fd >= 0 || errno == EINTR);
            continue;
        }
        uint64_t command = commands[any(sizeof commands / sizeof *commands)];
        if (any(16) == 0)
            command ^= 1ull << any(32);
        uint64_t argument = address(memory, bytes);
        if (argument % 8 == 0 && argument >= (uint64_t)memory && argument + 4096 < (uint64_t)memory + bytes) {
            struct usbdevfs_urb *urb = (void *)argument;
            if (any(4) == 0) {
                for (int at = 0; at < 128; at++)
                    ((uint8_t *)argument)[at] = any(256);
            } else if (command == USBDEVFS_CONTROL || command == USBDEVFS_BULK) {
                struct usbdevfs_bulktransfer bulk = {endpoints[any(11)], length(), 1 + any(4), (void *)address(memory, bytes)};
                memcpy(urb, &bulk, sizeof bulk);
            } else if (command == USBDEVFS_SUBMITURB) {
                *urb = (struct usbdevfs_urb){.type = any(5), .endpoint = endpoints[any(11)], .flags = any(2) ? 0 : any(256),
                    .buffer = (void *)address(memory, bytes), .buffer_length = length(),
                    .number_of_packets = any(4) ? any(9) : any(UINT32_MAX)};
                for (int at = 0; at < 8; at++)
                    urb->iso_frame_desc[at].length = any(3) ? any(2048) : any(UINT32_MAX);
            } else {
                *(uint32_t *)argument = any(4);
            }
        }
        sent++;
        taken += ioctl(*fd, command, argument) >= 0;
        if (any(64) == 0) {
            struct pollfd wait = {.fd = *fd, .events = POLLOUT | POLLIN};
            poll(&wait, 1, any(3));
        }
    }
    often = (struct itimerval){0};
    setitimer(ITIMER_REAL, &often, NULL);
    for (int at = 0; at < 4; at++)
        if (fds[at] >= 0)
            close(fds[at]);
    /* The device is as good as before: it has its configuration again, and moves data. */
    int fd = open(path, O_RDWR);
    CHECK(fd >= 0);
    CHECK(ioctl(fd, USBDEVFS_RESET, NULL) == 0);
    int value = 1;
    CHECK(ioctl(fd, USBDEVFS_SETCONFIGURATION, &value) == 0);
    int interface = 0;
    CHECK(ioctl(fd, USBDEVFS_CLAIMINTERFACE, &interface) == 0);
    struct usbdevfs_bulktransfer bulk = {0x81, 512, 5000, memory};
    CHECK(ioctl(fd, USBDEVFS_BULK, &bulk) == 512);
    CHECK(memory[62] == 62 && memory[63] == 0);
    printf("alive after %lu commands, of which %lu were carried out\n", sent, taken);
    return 0;
}

static int line(int fd, const char *pipe)
{
    int orders = open(pipe, O_RDWR);
    CHECK(orders >= 0);
    unsigned int interface = 0;
    CHECK(ioctl(fd, USBDEVFS_CLAIMINTERFACE, &interface) == 0);
    interface = 1;
    CHECK(ioctl(fd, USBDEVFS_CLAIMINTERFACE, &interface) == 0);
    /* SET_LINE_CODING: 115,200 bits a second. */
    uint8_t coding[7] = {0, 0xc2, 1, 0, 0, 0, 8}, told[7];
    struct usbdevfs_ctrltransfer set = {0x21, 0x20, 0, 0, 7, 1000, coding};
    CHECK(ioctl(fd, USBDEVFS_CONTROL, &set) == 7);
    for (;;) {
        uint8_t heard[64] = {0};
        struct usbdevfs_urb urb = {.type = USBDEVFS_URB_TYPE_BULK, .endpoint = 0x81, .buffer = heard,
                                   .buffer_length = sizeof heard};
        CHECK(ioctl(fd, USBDEVFS_SUBMITURB, &urb) == 0);
        printf("waiting\n");
        fflush(stdout);
        char order;
        CHECK(read(orders, &order, 1) == 1);
        if (order != 'h')
            return 0;
        struct usbdevfs_bulktransfer send = {0x01, 5, 1000, "hello"};
        CHECK(ioctl(fd, USBDEVFS_BULK, &send) == 5);
        struct usbdevfs_urb *ended;
        CHECK(ioctl(fd, USBDEVFS_REAPURB, &ended) == 0);
        CHECK(ended == &urb && urb.status == 0 && urb.actual_length == 5 && memcmp(heard, "hello", 5) == 0);
        memset(told, 0, sizeof told);
        struct usbdevfs_ctrltransfer get = {0xa1, 0x21, 0, 0, 7, 1000, told};
        CHECK(ioctl(fd, USBDEVFS_CONTROL, &get) == 7 && memcmp(told, coding, 7) == 0);
        printf("heard\n");
    }
}

int main(int count, char **words)
{
    CHECK(count >= 3);
    if (strcmp(words[1], "garbage") == 0)
        return garbage(words[2], strtoull(words[3], NULL, 10), atoi(words[4]));
    int fd = open(words[2], O_RDWR);
    CHECK(fd >= 0);
    if (strcmp(words[1], "line") == 0)
        return line(fd, words[3]);
    return narrow(fd);
}
