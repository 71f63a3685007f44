/*
 * bulkpair DEVICE INTERFACE ENDPOINT COUNT BYTES
 *
 * Sends so many transfers to an OUT endpoint (ENDPOINT in hexadecimal), or receives as many from an IN endpoint, and says how fast. Each
 * has the bytes that its number makes; one that came otherwise ends it. It speaks to the kernel's usbfs and knows nothing of USB/IP.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/usbdevice_fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

enum { PATIENCE_MS = 20000 };

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static unsigned char byte_of(long number, long at)
{
	return number * 31 + at * 7 + at / 251;
}

static void give_up(const char *doing)
{
	printf("bulkpair: %s: %s\n", doing, strerror(errno));
	exit(1);
}

int main(int argc, char **argv)
{
	struct usbdevfs_bulktransfer bulk = { .timeout = PATIENCE_MS };
	unsigned interface;
	long count, bytes, number, at;
	unsigned char *data;
	double start;
	int device;

	if (argc != 6) {
		printf("bulkpair: five arguments\n");
		return 2;
	}
	device = open(argv[1], O_RDWR);
	if (device < 0)
		give_up(argv[1]);
	interface = atoi(argv[2]);
	bulk.ep = strtoul(argv[3], NULL, 16);
	count = atol(argv[4]);
	bytes = atol(argv[5]);
	data = malloc(bytes);
	if (ioctl(device, USBDEVFS_CLAIMINTERFACE, &interface) < 0)
		give_up("claim");
	bulk.data = data;
	bulk.len = bytes;
	start = now_ms();
	for (number = 0; number < count; number++) {
		if (bulk.ep & 0x80)
			memset(data, 0, bytes);
		else
			for (at = 0; at < bytes; at++)
				data[at] = byte_of(number, at);
		if (ioctl(device, USBDEVFS_BULK, &bulk) != bytes)
			give_up(bulk.ep & 0x80 ? "receive" : "send");
		for (at = 0; at < bytes; at++)
			if (data[at] != byte_of(number, at)) {
				printf("bulkpair: byte %ld of transfer %ld is wrong\n", at, number);
				return 1;
			}
	}
	printf("raw %s: %ld transfers of %ld bytes, %.1f MB/s\n", bulk.ep & 0x80 ? "received" : "sent", count, bytes,
	       count * bytes / 1e3 / (now_ms() - start));
	return 0;
}
