/*
 * isostream DEVICE INTERFACE ALTERNATE IN OUT BYTES PACKETS INTERVAL_US SECONDS
 *
 * Keeps isochronous streams going in both directions (IN and OUT are endpoint addresses in hexadecimal, 0 for none) for so long,
 * and says what became of every packet and when requests were completed. It speaks to the kernel's usbfs and knows nothing of
 * USB/IP. Packets of IN must count 0 to 62 over and over, as the kernel's usbtest has it; those of OUT do.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/usbdevice_fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

/* Requests in flight: with 16 packets of a millisecond each a quarter of a second, for machines that are emulated and share a processor. */
enum { DEPTH = 16, PACKETS_MAX = 128, COMPLETIONS_MAX = 1 << 17 };

struct stream {
	const char *name;
	unsigned endpoint;
	long wanted, submitted, completed, failed_urbs;
	long packets, errors, short_packets, wrong;
	double first, last;
	double *interval;
	long intervals;
	struct usbdevfs_urb *urb[DEPTH];
};

static int device, bytes, packets;

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void give_up(const char *doing)
{
	printf("isostream: %s: %s\n", doing, strerror(errno));
	exit(1);
}

static void submit(struct stream *s, struct usbdevfs_urb *urb)
{
	unsigned char *data = urb->buffer;
	int i;

	for (i = 0; i < packets; i++) {
		urb->iso_frame_desc[i].length = bytes;
		urb->iso_frame_desc[i].actual_length = 0;
		urb->iso_frame_desc[i].status = 0;
	}
	if (s->endpoint & 0x80)
		memset(data, 0xff, bytes * packets);
	else
		for (i = 0; i < bytes * packets; i++)
			data[i] = i % bytes % 63;
	urb->type = USBDEVFS_URB_TYPE_ISO;
	urb->endpoint = s->endpoint;
	urb->flags = USBDEVFS_URB_ISO_ASAP;
	urb->status = 0;
	urb->buffer_length = bytes * packets;
	urb->number_of_packets = packets;
	urb->usercontext = s;
	if (ioctl(device, USBDEVFS_SUBMITURB, urb) < 0)
		give_up("submit");
	s->submitted++;
}

static void judge(struct stream *s, struct usbdevfs_urb *urb)
{
	const unsigned char *data = urb->buffer;
	int i, k;

	if (urb->status)
		s->failed_urbs++;
	for (i = 0; i < packets; i++, data += bytes) {
		s->packets++;
		if (urb->iso_frame_desc[i].status)
			s->errors++;
		else if (urb->iso_frame_desc[i].actual_length != (unsigned)bytes)
			s->short_packets++;
		else if (s->endpoint & 0x80)
			for (k = 0; k < bytes; k++)
				if (data[k] != k % 63) {
					s->wrong++;
					break;
				}
	}
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void report(struct stream *s, double nominal_ms)
{
	double *v = s->interval;
	long n = s->intervals;

	qsort(v, n, sizeof *v, by_size);
	printf("stream %s: %ld packets of %d bytes, %ld errors, %ld short, %ld wrong, %ld failed requests; "
	       "completions every %.3f ms median, %.3f p99, %.3f max (bus: %.3f), %.2f s for %.2f s\n",
	       s->name, s->packets, bytes, s->errors, s->short_packets, s->wrong, s->failed_urbs,
	       n ? v[n / 2] : 0, n ? v[n - 1 - n / 100] : 0, n ? v[n - 1] : 0, nominal_ms,
	       (s->last - s->first) / 1e3, n * nominal_ms / 1e3);
}

int main(int argc, char **argv)
{
	static struct stream streams[2] = { { .name = "IN" }, { .name = "OUT" } };
	struct usbdevfs_setinterface setting;
	struct usbdevfs_ioctl disconnect = { 0 };
	unsigned interface;
	double nominal_ms;
	int i, d, running = 0;

	if (argc != 10) {
		printf("isostream: nine arguments\n");
		return 2;
	}
	device = open(argv[1], O_RDWR);
	if (device < 0)
		give_up(argv[1]);
	interface = atoi(argv[2]);
	bytes = atoi(argv[6]);
	packets = atoi(argv[7]);
	if (packets < 1 || packets > PACKETS_MAX || bytes < 1) {
		printf("isostream: 1 to %d packets\n", PACKETS_MAX);
		return 2;
	}
	nominal_ms = packets * atof(argv[8]) / 1e3;
	disconnect.ifno = interface;
	disconnect.ioctl_code = USBDEVFS_DISCONNECT;
	/* Fails where no driver is. */
	ioctl(device, USBDEVFS_IOCTL, &disconnect);
	if (ioctl(device, USBDEVFS_CLAIMINTERFACE, &interface) < 0)
		give_up("claim");
	setting.interface = interface;
	setting.altsetting = atoi(argv[3]);
	if (ioctl(device, USBDEVFS_SETINTERFACE, &setting) < 0)
		give_up("set interface");
	for (i = 0; i < 2; i++) {
		struct stream *s = &streams[i];

		s->endpoint = strtoul(argv[4 + i], NULL, 16);
		if (!s->endpoint)
			continue;
		s->wanted = atof(argv[9]) * 1e3 / nominal_ms;
		if (s->wanted > COMPLETIONS_MAX)
			s->wanted = COMPLETIONS_MAX;
		s->interval = calloc(COMPLETIONS_MAX, sizeof *s->interval);
		running++;
		for (d = 0; d < DEPTH; d++) {
			s->urb[d] = calloc(1, sizeof **s->urb + packets * sizeof(struct usbdevfs_iso_packet_desc));
			s->urb[d]->buffer = malloc(bytes * packets);
			submit(s, s->urb[d]);
		}
	}
	while (running) {
		struct usbdevfs_urb *urb;
		struct stream *s;
		double at;

		if (ioctl(device, USBDEVFS_REAPURB, &urb) < 0)
			give_up("reap");
		at = now_ms();
		s = urb->usercontext;
		if (s->completed++)
			s->interval[s->intervals++] = at - s->last;
		else
			s->first = at;
		s->last = at;
		judge(s, urb);
		if (s->submitted < s->wanted)
			submit(s, urb);
		else if (s->completed == s->submitted)
			running--;
	}
	for (i = 0; i < 2; i++)
		if (streams[i].endpoint)
			report(&streams[i], nominal_ms);
	return 0;
}
