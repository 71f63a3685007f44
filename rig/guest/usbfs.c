/*
 * usbfs PART NODE INTERFACE IN OUT
 *
 * Says of a list of usbfs commands what each returns, a line for each: what was asked, a colon, and a number or the name of the error. Two
 * file systems that behave alike give the same lines. INTERFACE has the endpoints IN and OUT (in hexadecimal). Parts:
 *
 * rules     what is refused, and what a device says of itself
 * loop      transfers of a pair of bulk endpoints that gives back what it is sent, and nothing else
 * source    transfers of a bulk pair, one of which always has data and the other takes all; and its halts
 * settings  an interface with alternate settings: 0 has no endpoint, 1 has IN, which is isochronous
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/usbdevice_fs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NOBODY = 42, FAR_TOO_LARGE = 200, PATIENCE_MS = 2000, SOON_MS = 150, BYTES = 1 << 16 };

static const char *path;
static unsigned char in, out, *data, *other_data;
static unsigned interface;
static struct usbdevfs_urb urbs[8];

static void tell(const char *what, long result)
{
	if (result < 0)
		printf("%s: %s\n", what, strerrorname_np(-result));
	else
		printf("%s: %ld\n", what, result);
	fflush(stdout);
}

static long ask(int file, unsigned long command, void *argument)
{
	int result = ioctl(file, command, argument);

	return result < 0 ? -errno : result;
}

static long ask_number(int file, unsigned long command, unsigned number)
{
	return ask(file, command, &number);
}

static int opened(int flags)
{
	int file = open(path, flags);

	if (file < 0) {
		printf("%s: %s\n", path, strerror(errno));
		exit(1);
	}
	return file;
}

static long claim(int file, unsigned number) { return ask_number(file, USBDEVFS_CLAIMINTERFACE, number); }
static long release(int file, unsigned number) { return ask_number(file, USBDEVFS_RELEASEINTERFACE, number); }

static long control(int file, int type, int request, int value, int index, void *at, int length)
{
	struct usbdevfs_ctrltransfer transfer = { type, request, value, index, length, PATIENCE_MS, at };

	return ask(file, USBDEVFS_CONTROL, &transfer);
}

static long bulk(int file, unsigned endpoint, void *at, unsigned length, unsigned patience_ms)
{
	struct usbdevfs_bulktransfer transfer = { endpoint, length, patience_ms, at };

	return ask(file, USBDEVFS_BULK, &transfer);
}

static long submit(int file, int which, int type, int endpoint, unsigned flags, void *at, int length)
{
	struct usbdevfs_urb *urb = &urbs[which];

	memset(urb, 0, sizeof *urb);
	urb->type = type;
	urb->endpoint = endpoint;
	urb->flags = flags;
	urb->buffer = at;
	urb->buffer_length = length;
	/* What a program finds there afterwards is its own. */
	urb->usercontext = urb;
	urb->actual_length = 77;
	urb->error_count = 77;
	urb->status = 77;
	return ask(file, USBDEVFS_SUBMITURB, urb);
}

static int polled(int file, int events, int patience_ms)
{
	struct pollfd one_file = { file, events, 0 };

	return poll(&one_file, 1, patience_ms) < 0 ? -errno : one_file.revents;
}

/* Takes the next finished URB, and says which it is and how it ended. */
static void reap(const char *what, int file)
{
	struct usbdevfs_urb *urb = NULL;
	long result;

	polled(file, POLLOUT, PATIENCE_MS);
	result = ask(file, USBDEVFS_REAPURBNDELAY, &urb);
	if (result < 0)
		return tell(what, result);
	printf("%s: URB %td, status %s, %d bytes, %d errors%s\n", what, urb - urbs,
	       urb->status ? strerrorname_np(-urb->status) : "0", urb->actual_length, urb->error_count,
	       urb->usercontext == urb ? "" : ", another context");
	fflush(stdout);
}

/* Takes so many URBs, the one after the other, and says how they ended in the order in which they were submitted: what is
 * cancelled together ends in any order. */
static void reap_all(const char *what, int file, int count)
{
	struct usbdevfs_urb *ended[8] = {NULL}, *urb;
	int at;

	for (at = 0; at < count; at++) {
		polled(file, POLLOUT, PATIENCE_MS);
		urb = NULL;
		if (!ask(file, USBDEVFS_REAPURBNDELAY, &urb) && urb >= urbs && urb < urbs + 8)
			ended[urb - urbs] = urb;
	}
	for (at = 0; at < 8; at++) {
		if (ended[at])
			printf("%s: URB %d, status %s, %d bytes, %d errors\n", what, at,
			       ended[at]->status ? strerrorname_np(-ended[at]->status) : "0",
			       ended[at]->actual_length, ended[at]->error_count);
	}
	fflush(stdout);
}

/* Takes what is finished, and says nothing. */
static void drain(int file)
{
	void *urb;

	while (polled(file, POLLOUT, SOON_MS) == POLLOUT && !ask(file, USBDEVFS_REAPURBNDELAY, &urb))
		;
}

static const char *driver_of(int file, unsigned number)
{
	static struct usbdevfs_getdriver driver;

	driver.interface = number;
	return ask(file, USBDEVFS_GETDRIVER, &driver) < 0 ? strerrorname_np(errno) : driver.driver;
}

static void tell_driver(const char *what, int file, unsigned number)
{
	printf("%s: %s\n", what, driver_of(file, number));
}

static long question(int file, unsigned number, int code, void *at)
{
	struct usbdevfs_ioctl command = { number, code, at };

	return ask(file, USBDEVFS_IOCTL, &command);
}

static long disconnect_claim(int file, unsigned number, unsigned flags, const char *driver)
{
	struct usbdevfs_disconnect_claim command = { .interface = number, .flags = flags };

	strcpy(command.driver, driver);
	return ask(file, USBDEVFS_DISCONNECT_CLAIM, &command);
}

static long set_interface(int file, unsigned number, unsigned setting)
{
	struct usbdevfs_setinterface command = { number, setting };

	return ask(file, USBDEVFS_SETINTERFACE, &command);
}

static long streams(int file, unsigned long command, unsigned count, unsigned endpoints, unsigned char endpoint)
{
	struct usbdevfs_streams *argument = calloc(1, sizeof *argument + 2);

	argument->num_streams = count;
	argument->num_eps = endpoints;
	argument->eps[0] = endpoint;
	return ask(file, command, argument);
}

/* The device itself. */
static void facts(int file)
{
	static const char *names[] = { "ZERO_PACKET", "BULK_CONTINUATION", "NO_PACKET_SIZE_LIM", "BULK_SCATTER_GATHER",
		"REAP_AFTER_DISCONNECT", "MMAP", "DROP_PRIVILEGES", "CONNINFO_EX", "SUSPEND" };
	unsigned capabilities = 0, at, bus = 0, device = 0;
	struct usbdevfs_connectinfo info;
	struct usbdevfs_conninfo_ex more;
	unsigned char descriptors[4096];
	long length;

	sscanf(path, "/dev/bus/usb/%u/%u", &bus, &device);
	tell("GET_CAPABILITIES", ask(file, USBDEVFS_GET_CAPABILITIES, &capabilities));
	for (at = 0; at < sizeof names / sizeof *names; at++)
		printf("capability %s: %s\n", names[at], capabilities & 1u << at ? "yes" : "no");
	printf("capabilities without a name: %#x\n", capabilities >> at);
	tell("GET_SPEED", ask(file, USBDEVFS_GET_SPEED, NULL));
	tell("CONNECTINFO", ask(file, USBDEVFS_CONNECTINFO, &info));
	printf("CONNECTINFO, contents: its own number %s, slow %d\n", info.devnum == device ? "yes" : "no", info.slow);
	memset(&more, 0xaa, sizeof more);
	tell("CONNINFO_EX", ask(file, USBDEVFS_CONNINFO_EX(sizeof more), &more));
	printf("CONNINFO_EX, contents: %u bytes, its own bus %s and number %s, speed %u, %u ports, one after them %d\n", more.size,
	       more.busnum == bus ? "yes" : "no", more.devnum == device ? "yes" : "no", more.speed, more.num_ports,
	       more.ports[more.num_ports]);
	memset(&more, 0xaa, sizeof more);
	tell("CONNINFO_EX with room for 8 bytes", ask(file, USBDEVFS_CONNINFO_EX(8), &more));
	printf("CONNINFO_EX with room for 8 bytes, contents: %u, %#x\n", more.size, more.devnum);
	tell("CONNINFO_EX with room for 2 bytes", ask(file, USBDEVFS_CONNINFO_EX(2), &more));
	tell("CONNINFO_EX with room for 100 bytes", ask(file, USBDEVFS_CONNINFO_EX(100), data));

	length = read(file, descriptors, sizeof descriptors);
	tell("read all", length);
	for (at = 0; at < (unsigned)length; at++)
		printf("%s%02x", at % 32 ? " " : at ? "\ndescriptors: " : "descriptors: ", descriptors[at]);
	printf("\n");
	tell("read at the end", read(file, descriptors, sizeof descriptors));
	tell("read 5 bytes at 3", pread(file, descriptors, 5, 3));
	tell("read behind the end", pread(file, descriptors, 5, 5000));
	tell("seek to -1", lseek(file, -1, SEEK_SET) < 0 ? -errno : 0);
	tell("seek to 7", lseek(file, 7, SEEK_SET) < 0 ? -errno : 7);
	tell("seek from there", lseek(file, 2, SEEK_CUR) < 0 ? -errno : 9);
	tell("write", write(file, descriptors, 5) < 0 ? -errno : 0);
	tell("mmap", mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) == MAP_FAILED ? -errno : 0);
}

static void claims(int file, int other)
{
	int reader = opened(O_RDONLY);

	tell("claim on an open for reading", claim(reader, interface));
	tell("GET_CAPABILITIES on an open for reading", ask_number(reader, USBDEVFS_GET_CAPABILITIES, 0));
	tell("poll of an open for reading", polled(reader, POLLIN | POLLOUT, 0));
	close(reader);
	tell_driver("driver of an interface that is free", file, interface);
	tell_driver("driver of an interface that is not there", file, NOBODY);
	tell("claim an interface that is not there", claim(file, NOBODY));
	tell("claim interface 200", claim(file, FAR_TOO_LARGE));
	tell("claim interface 2^32 - 1", claim(file, -1));
	tell("release an interface that is free", release(file, interface));
	tell("release an interface that is not there", release(file, NOBODY));
	tell("release interface 200", release(file, FAR_TOO_LARGE));
	tell("claim", claim(file, interface));
	tell("claim again", claim(file, interface));
	tell_driver("driver of a claimed interface", other, interface);
	tell("claim by another open", claim(other, interface));
	tell("release by another open", release(other, interface));
	tell("bulk by another open", bulk(other, in, data, 64, SOON_MS));
	tell("submit by another open", submit(other, 0, USBDEVFS_URB_TYPE_BULK, in, 0, data, 64));
	tell("SETINTERFACE by another open", set_interface(other, interface, 0));
	tell("CLEAR_HALT by another open", ask_number(other, USBDEVFS_CLEAR_HALT, in));
	tell("RESETEP by another open", ask_number(other, USBDEVFS_RESETEP, in));
	tell("class request to the interface by another open", control(other, 0xa1, 0x7e, 0, interface, data, 8));
	tell("vendor request to the interface by another open", control(other, 0xc1, 0x7e, 0, interface, data, 8));
	tell("GET_STATUS of the endpoint by another open", control(other, 0x82, 0, 0, in, data, 2));
	tell("GET_STATUS of the device by another open", control(other, 0x80, 0, 0, 0, data, 2));
	tell("SETCONFIGURATION while it is claimed", ask_number(other, USBDEVFS_SETCONFIGURATION, 1));
	tell("SETCONFIGURATION by the holder", ask_number(file, USBDEVFS_SETCONFIGURATION, 1));
	tell("release", release(file, interface));
	tell("release again", release(file, interface));
	tell("claim by another open after that", claim(other, interface));
	close(other);
	tell("claim after the other open was closed", claim(file, interface));
	tell("release after that", release(file, interface));

	/* What claims an interface by itself. */
	tell("CLEAR_HALT without a claim", ask_number(file, USBDEVFS_CLEAR_HALT, in));
	tell_driver("driver then", file, interface);
	release(file, interface);
	tell("RESETEP without a claim", ask_number(file, USBDEVFS_RESETEP, in));
	tell_driver("driver then", file, interface);
	release(file, interface);
	tell("SETINTERFACE without a claim", set_interface(file, interface, 0));
	tell_driver("driver then", file, interface);
	release(file, interface);
	tell("GET_STATUS of the endpoint without a claim", control(file, 0x82, 0, 0, in, data, 2));
	tell_driver("driver then", file, interface);
	release(file, interface);
	tell("GET_STATUS of the interface without a claim", control(file, 0x81, 0, 0, interface, data, 2));
	tell_driver("driver then", file, interface);
	release(file, interface);
	tell("empty bulk OUT without a claim", bulk(file, out, data, 0, PATIENCE_MS));
	tell_driver("driver then", file, interface);
	release(file, interface);
	tell("vendor request without a claim", control(file, 0xc1, 0x7e, 0, interface, data, 8));
	tell_driver("driver then", file, interface);
}

static void driver_questions(int file)
{
	int other = opened(O_RDWR);

	tell("DISCONNECT without a driver", question(file, interface, USBDEVFS_DISCONNECT, NULL));
	tell("DISCONNECT of an interface that is not there", question(file, NOBODY, USBDEVFS_DISCONNECT, NULL));
	tell("CONNECT without a driver", question(file, interface, USBDEVFS_CONNECT, NULL));
	tell("CONNECT of an interface that is not there", question(file, NOBODY, USBDEVFS_CONNECT, NULL));
	tell("an unknown question without a driver", question(file, interface, _IO('U', 99), NULL));
	tell("an unknown question to an interface that is not there", question(file, NOBODY, _IO('U', 99), NULL));
	tell("an unknown question with data", question(file, interface, _IOWR('U', 99, int), data));
	tell("an unknown question with data nowhere", question(file, interface, _IOWR('U', 99, int), NULL));
	claim(other, interface);
	tell("CONNECT of what another open has", question(file, interface, USBDEVFS_CONNECT, NULL));
	tell("an unknown question to usbfs", question(file, interface, _IO('U', 99), NULL));
	tell("DISCONNECT of what another open has", question(file, interface, USBDEVFS_DISCONNECT, NULL));
	tell("release by that other open", release(other, interface));
	tell("DISCONNECT_CLAIM of a free interface", disconnect_claim(file, interface, 0, ""));
	tell("DISCONNECT_CLAIM of its own interface", disconnect_claim(file, interface, 0, ""));
	tell("DISCONNECT_CLAIM of its own interface, not from usbfs", disconnect_claim(file, interface, USBDEVFS_DISCONNECT_CLAIM_EXCEPT_DRIVER, "usbfs"));
	tell("DISCONNECT_CLAIM of its own interface, if it is a disk's", disconnect_claim(file, interface, USBDEVFS_DISCONNECT_CLAIM_IF_DRIVER, "usb-storage"));
	tell("DISCONNECT_CLAIM of another's, not from usbfs", disconnect_claim(other, interface, USBDEVFS_DISCONNECT_CLAIM_EXCEPT_DRIVER, "usbfs"));
	tell("DISCONNECT_CLAIM of another's, if it is a disk's", disconnect_claim(other, interface, USBDEVFS_DISCONNECT_CLAIM_IF_DRIVER, "usb-storage"));
	tell("DISCONNECT_CLAIM of another's, if it is usbfs's", disconnect_claim(other, interface, USBDEVFS_DISCONNECT_CLAIM_IF_DRIVER, "usbfs"));
	tell("release by who had it", release(file, interface));
	tell("release by who has it", release(other, interface));
	tell("DISCONNECT_CLAIM of an interface that is not there", disconnect_claim(file, NOBODY, 0, ""));
	tell("DISCONNECT_CLAIM of interface 200", disconnect_claim(file, FAR_TOO_LARGE, 0, ""));
	close(other);
}

static void dropped_rights(void)
{
	int file = opened(O_RDWR), other = opened(O_RDWR);

	claim(file, interface);
	tell("DROP_PRIVILEGES, none left", ask_number(file, USBDEVFS_DROP_PRIVILEGES, 0));
	tell("claim what it has, without the right", claim(file, interface));
	tell("release without the right", release(file, interface));
	tell("claim without the right", claim(file, interface));
	tell("claim what is not there, without the right", claim(file, NOBODY));
	tell("bulk without the right", bulk(file, out, data, 0, PATIENCE_MS));
	tell("submit without the right", submit(file, 0, USBDEVFS_URB_TYPE_BULK, out, 0, data, 0));
	tell("CLEAR_HALT without the right", ask_number(file, USBDEVFS_CLEAR_HALT, in));
	tell("request to the interface without the right", control(file, 0x81, 0, 0, interface, data, 2));
	tell("vendor request without the right", control(file, 0xc1, 0x7e, 0, interface, data, 8));
	tell("CONNECT without the right", question(file, interface, USBDEVFS_CONNECT, NULL));
	tell("DISCONNECT_CLAIM without the right", disconnect_claim(file, interface, 0, ""));
	tell("DROP_PRIVILEGES, all back", ask_number(file, USBDEVFS_DROP_PRIVILEGES, -1));
	tell("claim after that", claim(file, interface));
	tell("SETCONFIGURATION without the right, nobody has an interface", ask_number(file, USBDEVFS_SETCONFIGURATION, 1));
	tell("RESET without the right, nobody has an interface", ask(file, USBDEVFS_RESET, NULL));
	claim(other, interface);
	tell("RESET without the right, another has an interface", ask(file, USBDEVFS_RESET, NULL));
	tell("DISCONNECT_CLAIM of another's without the right", disconnect_claim(file, interface, 0, ""));
	close(file);
	close(other);
	file = opened(O_RDWR);
	tell("DROP_PRIVILEGES, one left", ask_number(file, USBDEVFS_DROP_PRIVILEGES, 1u << interface));
	tell("claim the one", claim(file, interface));
	tell("RESET by the only one with an interface", ask(file, USBDEVFS_RESET, NULL));
	close(file);
}

static void refused(int file)
{
	unsigned char setup[8] = { 0x80, 6, 0, 1, 0, 0, 18, 0 };

	tell("an unknown command", ask(file, _IO('U', 77), NULL));
	tell("a command of terminals", ask(file, 0x5401, data));
	tell("claim, its argument nowhere", ask(file, USBDEVFS_CLAIMINTERFACE, NULL));
	tell("CONTROL, its argument nowhere", ask(file, USBDEVFS_CONTROL, NULL));
	tell("BULK, its argument nowhere", ask(file, USBDEVFS_BULK, NULL));
	tell("SUBMITURB, its argument nowhere", ask(file, USBDEVFS_SUBMITURB, NULL));
	tell("GETDRIVER, its argument nowhere", ask(file, USBDEVFS_GETDRIVER, NULL));
	tell("GET_CAPABILITIES, its argument nowhere", ask(file, USBDEVFS_GET_CAPABILITIES, NULL));
	tell("CONNECTINFO, its argument nowhere", ask(file, USBDEVFS_CONNECTINFO, NULL));
	tell("CONNINFO_EX, its argument nowhere", ask(file, USBDEVFS_CONNINFO_EX(24), NULL));
	tell("REAPURBNDELAY, nothing is there", ask(file, USBDEVFS_REAPURBNDELAY, data));
	tell("REAPURBNDELAY, its argument nowhere", ask(file, USBDEVFS_REAPURBNDELAY, NULL));
	tell("poll, nothing is there", polled(file, POLLIN | POLLOUT | POLLPRI, 0));
	tell("DISCARDURB of none", ask(file, USBDEVFS_DISCARDURB, NULL));
	tell("DISCARDURB of an unknown one", ask(file, USBDEVFS_DISCARDURB, &urbs[7]));
	tell("DISCSIGNAL", ask(file, USBDEVFS_DISCSIGNAL, &(struct usbdevfs_disconnectsignal){ 0 }));
	tell("CLAIM_PORT", ask_number(file, USBDEVFS_CLAIM_PORT, 1));
	tell("RELEASE_PORT", ask_number(file, USBDEVFS_RELEASE_PORT, 1));
	tell("FORBID_SUSPEND", ask(file, USBDEVFS_FORBID_SUSPEND, NULL));
	tell("ALLOW_SUSPEND", ask(file, USBDEVFS_ALLOW_SUSPEND, NULL));
	tell("FORBID_SUSPEND after that", ask(file, USBDEVFS_FORBID_SUSPEND, NULL));
	tell("ALLOC_STREAMS of a device without", streams(file, USBDEVFS_ALLOC_STREAMS, 4, 1, in));
	tell("ALLOC_STREAMS, one", streams(file, USBDEVFS_ALLOC_STREAMS, 1, 1, in));
	tell("ALLOC_STREAMS for no endpoint", streams(file, USBDEVFS_ALLOC_STREAMS, 4, 0, in));
	tell("ALLOC_STREAMS for an endpoint that is not there", streams(file, USBDEVFS_ALLOC_STREAMS, 4, 1, 0x8f));
	tell("FREE_STREAMS", streams(file, USBDEVFS_FREE_STREAMS, 0, 1, in));
	release(file, interface);

	tell("BULK, an endpoint that is not there", bulk(file, 0x8f, data, 64, SOON_MS));
	tell("BULK, endpoint 0", bulk(file, 0, data, 64, SOON_MS));
	tell("BULK, endpoint 0x80", bulk(file, 0x80, data, 64, SOON_MS));
	tell("BULK, no endpoint's address", bulk(file, 0x71, data, 64, SOON_MS));
	tell("BULK, 2^31 bytes", bulk(file, in, data, 1u << 31, SOON_MS));
	tell("BULK OUT, its data nowhere", bulk(file, out, NULL, 64, SOON_MS));
	tell("CLEAR_HALT, an endpoint that is not there", ask_number(file, USBDEVFS_CLEAR_HALT, 0x8f));
	tell("CLEAR_HALT, endpoint 0", ask_number(file, USBDEVFS_CLEAR_HALT, 0));
	tell("CLEAR_HALT, no endpoint's address", ask_number(file, USBDEVFS_CLEAR_HALT, 0x171));
	tell("RESETEP, an endpoint that is not there", ask_number(file, USBDEVFS_RESETEP, 0x8f));
	tell("SETINTERFACE, an interface that is not there", set_interface(file, NOBODY, 0));
	tell("SETINTERFACE, interface 200", set_interface(file, FAR_TOO_LARGE, 0));
	tell("SETINTERFACE, a setting that is not there", set_interface(file, interface, 9));
	tell("SETINTERFACE, setting 300", set_interface(file, interface, 300));
	tell("SETCONFIGURATION while it is claimed so", ask_number(file, USBDEVFS_SETCONFIGURATION, 1));
	release(file, interface);
	tell("SETCONFIGURATION, one that is not there", ask_number(file, USBDEVFS_SETCONFIGURATION, 9));
	tell("SETCONFIGURATION, 300", ask_number(file, USBDEVFS_SETCONFIGURATION, 300));
	tell("SETCONFIGURATION, the same", ask_number(file, USBDEVFS_SETCONFIGURATION, 1));

	tell("CONTROL, a descriptor", control(file, 0x80, 6, 0x100, 0, data, 18));
	tell("CONTROL, a descriptor, with more room", control(file, 0x80, 6, 0x100, 0, data, 64));
	tell("CONTROL, a descriptor, a part of it", control(file, 0x80, 6, 0x100, 0, data, 8));
	tell("CONTROL, a descriptor, none of it", control(file, 0x80, 6, 0x100, 0, data, 0));
	tell("CONTROL, a descriptor that is not there", control(file, 0x80, 6, 0x7700, 0, data, 18));
	tell("CONTROL, a request that is not there", control(file, 0xc0, 0x7e, 0, 0, data, 18));
	tell("CONTROL OUT, a request that is not there", control(file, 0x40, 0x7e, 0, 0, data, 18));
	tell("CONTROL without data, a request that is not there", control(file, 0x40, 0x7e, 0, 0, NULL, 0));
	tell("CONTROL after that", control(file, 0x80, 6, 0x100, 0, data, 18));
	tell("CONTROL, 4096 bytes", control(file, 0x80, 6, 0x200, 0, data, 4096) > 0);
	tell("CONTROL, 4097 bytes", control(file, 0x80, 6, 0x200, 0, data, 4097));
	tell("CONTROL IN, its data nowhere", control(file, 0x80, 6, 0x100, 0, NULL, 18));
	tell("CONTROL OUT, its data nowhere", control(file, 0x40, 0x7e, 0, 0, NULL, 18));
	tell("CONTROL, an interface that is not there", control(file, 0x81, 0, 0, NOBODY, data, 2));
	tell("CONTROL, interface 200", control(file, 0x81, 0, 0, FAR_TOO_LARGE, data, 2));
	tell("CONTROL, an endpoint that is not there", control(file, 0x82, 0, 0, 0x8f, data, 2));
	tell("CONTROL, no endpoint's address", control(file, 0x82, 0, 0, 0x71, data, 2));
	tell("CONTROL, the endpoint of the other direction", control(file, 0x82, 0, 0, 0x80, data, 2));

	tell("submit, an endpoint that is not there", submit(file, 0, USBDEVFS_URB_TYPE_BULK, 0x8f, 0, data, 64));
	tell("submit, no endpoint's address", submit(file, 0, USBDEVFS_URB_TYPE_BULK, 0x71, 0, data, 64));
	tell("submit, bulk at endpoint 0", submit(file, 0, USBDEVFS_URB_TYPE_BULK, 0, 0, data, 64));
	tell("submit, interrupt at a bulk endpoint", submit(file, 0, USBDEVFS_URB_TYPE_INTERRUPT, in, 0, data, 64));
	tell("submit, control at a bulk endpoint", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, in, 0, data, 64));
	tell("submit, an unknown type", submit(file, 0, 9, in, 0, data, 64));
	tell("submit, an unknown option", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0x100, data, 64));
	tell("submit, bulk with ISO_ASAP", submit(file, 0, USBDEVFS_URB_TYPE_BULK, out, USBDEVFS_URB_ISO_ASAP, data, 0));
	tell("submit, 2^31 - 1 bytes", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, data, 0x7fffffff));
	tell("submit, -1 bytes", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, data, -1));
	tell("submit, data at 0", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, NULL, 64));
	tell("submit OUT, data nowhere", submit(file, 0, USBDEVFS_URB_TYPE_BULK, out, 0, (void *)4096, 64));
	tell("submit, isochronous without packets", submit(file, 0, USBDEVFS_URB_TYPE_ISO, in, 0, data, 64));
	tell("submit, control of 7 bytes", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, 0, setup, 7));
	tell("submit, control with less room than it says", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, 0, setup, 8));
	drain(file);
	tell_driver("driver after what was refused", file, interface);
	release(file, interface);

	/* The data of a control URB follow its setup packet. */
	memcpy(data, setup, 8);
	memset(data + 8, 0xaa, 64);
	tell("submit control", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, 0, data, 8 + 18));
	reap("reap control", file);
	printf("its data: %02x %02x %02x .. %02x %02x\n", data[8], data[9], data[10], data[25], data[26]);
	tell("submit control at 0x80", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0x80, 0, data, 8 + 18));
	reap("reap control at 0x80", file);
	data[6] = 64;
	tell("submit control with more room", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, 0, data, 8 + 64));
	reap("reap control with more room", file);
	tell("submit control, short is wrong", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, USBDEVFS_URB_SHORT_NOT_OK, data, 8 + 64));
	reap("reap control, short is wrong", file);
	memcpy(data, (unsigned char[]){ 0xc0, 0x7e, 0, 0, 0, 0, 8, 0 }, 8);
	tell("submit control that is not there", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, 0, data, 16));
	reap("reap control that is not there", file);
	tell("REAPURBNDELAY, nothing is left", ask(file, USBDEVFS_REAPURBNDELAY, &data));
}

static void configurations(int file)
{
	tell("SETCONFIGURATION, none", ask_number(file, USBDEVFS_SETCONFIGURATION, -1));
	tell_driver("driver without a configuration", file, interface);
	tell("claim without a configuration", claim(file, interface));
	tell("release without a configuration", release(file, interface));
	tell("BULK without a configuration", bulk(file, in, data, 64, SOON_MS));
	tell("submit without a configuration", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, data, 64));
	tell("CLEAR_HALT without a configuration", ask_number(file, USBDEVFS_CLEAR_HALT, in));
	tell("SETINTERFACE without a configuration", set_interface(file, interface, 0));
	tell("CONNECT without a configuration", question(file, interface, USBDEVFS_CONNECT, NULL));
	tell("DISCONNECT_CLAIM without a configuration", disconnect_claim(file, interface, 0, ""));
	tell("request to the interface without a configuration", control(file, 0x81, 0, 0, interface, data, 2));
	tell("request to the endpoint without a configuration", control(file, 0x82, 0, 0, in, data, 2));
	tell("request to the device without a configuration", control(file, 0x80, 6, 0x100, 0, data, 18));
	tell("GET_CONFIGURATION without a configuration", control(file, 0x80, 8, 0, 0, data, 1) == 1 ? data[0] : -1);
	tell("RESET without a configuration", ask(file, USBDEVFS_RESET, NULL));
	tell("SETCONFIGURATION, 1", ask_number(file, USBDEVFS_SETCONFIGURATION, 1));
	tell("GET_CONFIGURATION", control(file, 0x80, 8, 0, 0, data, 1) == 1 ? data[0] : -1);
	tell("claim after that", claim(file, interface));
	tell("RESET with a claim", ask(file, USBDEVFS_RESET, NULL));
	tell("GET_CONFIGURATION after a reset", control(file, 0x80, 8, 0, 0, data, 1) == 1 ? data[0] : -1);
	tell_driver("driver after a reset", file, interface);
	tell("empty bulk OUT after a reset", bulk(file, out, data, 0, PATIENCE_MS));
	release(file, interface);
}

static void rules(void)
{
	int file = opened(O_RDWR);

	facts(file);
	claims(file, opened(O_RDWR));
	driver_questions(file);
	refused(file);
	configurations(file);
	dropped_rights();
	close(file);
}

static void nothing(int signal) { (void)signal; }

/* A signal comes to this process while it waits. */
static void be_interrupted_soon(void)
{
	struct sigaction action = { .sa_handler = nothing };

	sigaction(SIGALRM, &action, NULL);
	ualarm(SOON_MS * 1000, 0);
}

static void *reap_in_another_thread(void *file)
{
	struct usbdevfs_urb *urb = NULL;

	return (void *)(ask(*(int *)file, USBDEVFS_REAPURB, &urb) < 0 ? -1L : urb - urbs);
}

/* An open that has the interface, and nothing is left on the line of what was before. */
static int anew(int file)
{
	close(file);
	file = opened(O_RDWR);
	claim(file, interface);
	while (bulk(file, in, other_data, 512, SOON_MS) >= 0)
		;
	return file;
}

static void loop(void)
{
	int file = anew(-1), other = opened(O_RDWR), at, reaped;
	struct usbdevfs_urb *urb = NULL;
	pthread_t thread;
	void *result;

	for (at = 0; at < BYTES; at++)
		data[at] = at * 7 + at / 251;

	tell("BULK IN, nothing comes", bulk(file, in, other_data, 64, SOON_MS));
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	tell("BULK IN, room for 512", bulk(file, in, other_data, 512, PATIENCE_MS));
	tell("and it is the same", memcmp(data, other_data, 100));
	tell("BULK OUT, 100 bytes again", bulk(file, out, data, 100, PATIENCE_MS));
	tell("BULK IN, its data nowhere", bulk(file, in, NULL, 512, PATIENCE_MS));
	tell("BULK IN, nothing comes again", bulk(file, in, other_data, 64, SOON_MS));

	/* Submitted, polled for, reaped. */
	tell("submit IN", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512));
	tell("REAPURBNDELAY while it is under way", ask(file, USBDEVFS_REAPURBNDELAY, &urb));
	tell("poll while it is under way", polled(file, POLLIN | POLLOUT, SOON_MS));
	tell("its status while it is under way", urbs[0].status);
	tell("SETCONFIGURATION while it is under way", ask_number(file, USBDEVFS_SETCONFIGURATION, 1));
	tell("REAPURB, until a signal comes", (be_interrupted_soon(), ask(file, USBDEVFS_REAPURB, &urb)));
	tell("poll, until a signal comes", (be_interrupted_soon(), polled(file, POLLOUT, PATIENCE_MS)));
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	tell("poll when it is there", polled(file, POLLIN | POLLOUT | POLLPRI, PATIENCE_MS));
	tell("poll for all when it is there", polled(file, POLLIN | POLLOUT | POLLWRNORM | POLLRDNORM, PATIENCE_MS));
	tell("poll by another open", polled(other, POLLOUT, 0));
	tell("REAPURBNDELAY by another open", ask(other, USBDEVFS_REAPURBNDELAY, &urb));
	tell("its status before it is reaped", urbs[0].status);
	tell("DISCARDURB before it is reaped", ask(file, USBDEVFS_DISCARDURB, &urbs[0]));
	reap("reap IN", file);
	tell("and it is the same", memcmp(data, other_data, 100));
	tell("poll after that", polled(file, POLLIN | POLLOUT, 0));

	/* What waits in another thread. */
	pthread_create(&thread, NULL, reap_in_another_thread, &file);
	usleep(SOON_MS * 1000);
	tell("submit OUT, empty, while another thread reaps", submit(file, 1, USBDEVFS_URB_TYPE_BULK, out, 0, data, 0));
	pthread_join(thread, &result);
	tell("which one it gets", (long)result);

	/* Options. */
	file = anew(file);
	tell("submit IN, empty", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, NULL, 0));
	tell("DISCARDURB of it", ask(file, USBDEVFS_DISCARDURB, &urbs[0]));
	reap("reap IN, empty", file);
	tell("submit OUT with ZERO_PACKET", submit(file, 1, USBDEVFS_URB_TYPE_BULK, out, USBDEVFS_URB_ZERO_PACKET, data, 10));
	reap("reap OUT with ZERO_PACKET", file);
	file = anew(file);
	tell("submit IN, short is wrong", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, USBDEVFS_URB_SHORT_NOT_OK, other_data, 512));
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	reap("reap IN, short is wrong", file);
	tell("submit OUT, short is wrong", submit(file, 0, USBDEVFS_URB_TYPE_BULK, out, USBDEVFS_URB_SHORT_NOT_OK, data, 100));
	reap("reap OUT, short is wrong", file);
	tell("BULK IN, 100 bytes", bulk(file, in, other_data, 100, PATIENCE_MS));

	file = anew(file);
	/* A transfer in three URBs, whose first is short; then one in three whose last is. */
	for (at = 0; at < 3; at++)
		tell("submit IN, three of a transfer", submit(file, at, USBDEVFS_URB_TYPE_BULK, in,
			USBDEVFS_URB_SHORT_NOT_OK | (at ? USBDEVFS_URB_BULK_CONTINUATION : 0), other_data + at * 512, 512));
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	reap_all("reap one of the three", file, 3);
	tell("submit IN, which continues what is over", submit(file, 3, USBDEVFS_URB_TYPE_BULK, in, USBDEVFS_URB_BULK_CONTINUATION, other_data, 512));
	file = anew(file);
	tell("submit IN, anew", submit(file, 3, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512));
	tell("submit IN, which continues it", submit(file, 4, USBDEVFS_URB_TYPE_BULK, in, USBDEVFS_URB_BULK_CONTINUATION, other_data + 512, 512));
	tell("BULK OUT, 700 bytes", bulk(file, out, data, 700, PATIENCE_MS));
	reap("reap the first", file);
	reap("reap the second", file);
	tell("and it is the same", memcmp(data, other_data, 700));
	file = anew(file);
	/* One that is over early, and a new transfer is queued behind it. */
	for (at = 0; at < 3; at++)
		submit(file, at, USBDEVFS_URB_TYPE_BULK, in, at == 2 ? 0 : USBDEVFS_URB_SHORT_NOT_OK | (at ? USBDEVFS_URB_BULK_CONTINUATION : 0),
		       other_data + at * 512, 512);
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	reap("reap the first of a transfer", file);
	reap("reap what continued it", file);
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	reap("reap the transfer after it", file);

	/* Discarded. */
	file = anew(file);
	for (at = 0; at < 3; at++)
		submit(file, at, USBDEVFS_URB_TYPE_BULK, in, 0, other_data + at * 512, 512);
	tell("DISCARDURB by another open", ask(other, USBDEVFS_DISCARDURB, &urbs[1]));
	tell("DISCARDURB of the second of three", ask(file, USBDEVFS_DISCARDURB, &urbs[1]));
	tell("DISCARDURB again", ask(file, USBDEVFS_DISCARDURB, &urbs[1]));
	reap("reap the second", file);
	tell("DISCARDURB after that", ask(file, USBDEVFS_DISCARDURB, &urbs[1]));
	tell("BULK OUT, 100 bytes", bulk(file, out, data, 100, PATIENCE_MS));
	reap("reap the first", file);
	file = anew(file);
	submit(file, 2, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512);
	tell("release with one under way", release(file, interface));
	reap("reap after the release", file);
	file = anew(file);
	submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512);
	tell("SETINTERFACE with one under way", set_interface(file, interface, 0));
	reap("reap after SETINTERFACE", file);
	file = anew(file);
	submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512);
	tell("RESET with one under way", ask(file, USBDEVFS_RESET, NULL));
	reap("reap after RESET", file);
	file = anew(file);
	submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512);
	tell("DISCONNECT by another open with one under way", question(other, interface, USBDEVFS_DISCONNECT, NULL));
	reap("reap after DISCONNECT", file);
	tell("claim by that other open", claim(other, interface));
	release(other, interface);
	claim(file, interface);
	for (at = 0; at < 8; at++)
		submit(file, at, USBDEVFS_URB_TYPE_BULK, in, 0, other_data + at * 512, 512);
	close(file);
	tell("claim after an open with URBs was closed", claim(other, interface));
	tell("BULK OUT, 100 bytes", bulk(other, out, data, 100, PATIENCE_MS));
	tell("BULK IN, nobody else takes it", bulk(other, in, other_data, 512, PATIENCE_MS));

	/* Many bytes, in one transfer. */
	submit(other, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, BYTES / 4);
	tell("BULK OUT, many bytes", bulk(other, out, data, BYTES / 4, PATIENCE_MS));
	for (at = reaped = 0; at < BYTES / 4 && reaped < 1000; reaped++) {
		if (polled(other, POLLOUT, PATIENCE_MS) != POLLOUT || ask(other, USBDEVFS_REAPURBNDELAY, &urb))
			break;
		at += urb->actual_length;
		if (at < BYTES / 4)
			submit(other, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data + at, BYTES / 4 - at);
	}
	tell("as many come back", at);
	tell("and they are the same", !!memcmp(data, other_data, BYTES / 4));

	/* A child has the same open. */
	file = dup(other);
	if (fork() == 0) {
		tell("claim in a child", claim(file, interface));
		tell("BULK OUT in a child", bulk(file, out, data, 50, PATIENCE_MS));
		exit(0);
	}
	wait(NULL);
	close(file);
	tell("BULK IN in the parent", bulk(other, in, other_data, 512, PATIENCE_MS));
	tell("claim after a duplicate was closed", claim(other, interface));
	close(other);
}

static void source(void)
{
	int file = opened(O_RDWR), at;

	claim(file, interface);
	tell("BULK IN", bulk(file, in, other_data, 8192, PATIENCE_MS));
	tell("BULK OUT", bulk(file, out, data, 8192, PATIENCE_MS));
	tell("halt IN", control(file, 0x02, 3, 0, in, NULL, 0));
	tell("BULK IN, halted", bulk(file, in, other_data, 512, PATIENCE_MS));
	tell("submit IN, halted", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, other_data, 512));
	reap("reap IN, halted", file);
	tell("submit IN, which continues it", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, USBDEVFS_URB_BULK_CONTINUATION, other_data, 512));
	tell("RESETEP does not end a halt", ask_number(file, USBDEVFS_RESETEP, in));
	tell("BULK IN, halted", bulk(file, in, other_data, 512, PATIENCE_MS));
	tell("GET_STATUS of the endpoint", control(file, 0x82, 0, 0, in, data, 2) == 2 ? data[0] : -1);
	tell("CLEAR_HALT", ask_number(file, USBDEVFS_CLEAR_HALT, in));
	tell("GET_STATUS of the endpoint", control(file, 0x82, 0, 0, in, data, 2) == 2 ? data[0] : -1);
	tell("submit IN, which continues what is over", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, USBDEVFS_URB_BULK_CONTINUATION, other_data, 512));
	tell("BULK IN", bulk(file, in, other_data, 512, PATIENCE_MS));
	tell("halt OUT", control(file, 0x02, 3, 0, out, NULL, 0));
	tell("BULK OUT, halted", bulk(file, out, data, 512, PATIENCE_MS));
	tell("CLEAR_HALT of OUT", ask_number(file, USBDEVFS_CLEAR_HALT, out));
	tell("BULK OUT", bulk(file, out, data, 512, PATIENCE_MS));
	tell("halt IN", control(file, 0x02, 3, 0, in, NULL, 0));
	tell("RESET ends a halt", ask(file, USBDEVFS_RESET, NULL));
	tell("BULK IN", bulk(file, in, other_data, 512, PATIENCE_MS));
	ask_number(file, USBDEVFS_CLEAR_HALT, in);
	for (at = 0; at < 8; at++)
		tell("submit IN, eight", submit(file, at, USBDEVFS_URB_TYPE_BULK, in, at ? USBDEVFS_URB_BULK_CONTINUATION : 0, other_data + at * 512, 512));
	for (at = 0; at < 8; at++)
		reap("reap IN, eight", file);
	memcpy(data, (unsigned char[]){ 0x40, 0x5b, 0, 0, 0, 0, 40, 0 }, 8);
	for (at = 0; at < 40; at++)
		data[8 + at] = at * 3;
	tell("vendor request OUT", control(file, 0x40, 0x5b, 0, 0, data + 8, 40));
	tell("vendor request IN", control(file, 0xc0, 0x5c, 0, 0, other_data, 40));
	tell("and it is the same", memcmp(data + 8, other_data, 40));
	tell("submit control OUT", submit(file, 0, USBDEVFS_URB_TYPE_CONTROL, 0, 0, data, 48));
	reap("reap control OUT", file);
	/* Its last packet is full. A sink of the kernel's halts if it gets anything but zeros. */
	memset(data, 0, 1024);
	tell("submit OUT with ZERO_PACKET", submit(file, 0, USBDEVFS_URB_TYPE_BULK, out, USBDEVFS_URB_ZERO_PACKET, data, 1024));
	reap("reap OUT with ZERO_PACKET", file);
	tell("submit IN with NO_INTERRUPT", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, USBDEVFS_URB_NO_INTERRUPT, other_data, 512));
	reap("reap IN with NO_INTERRUPT", file);
	close(file);
}

enum { PACKETS = 8 };

static struct {
	struct usbdevfs_urb urb;
	struct usbdevfs_iso_packet_desc packets[129];
} isochronous;

static long submit_packets(int file, int endpoint, int count, int bytes)
{
	int at;

	memset(&isochronous, 0, sizeof isochronous);
	isochronous.urb.type = USBDEVFS_URB_TYPE_ISO;
	isochronous.urb.endpoint = endpoint;
	isochronous.urb.flags = USBDEVFS_URB_ISO_ASAP;
	isochronous.urb.buffer = other_data;
	isochronous.urb.buffer_length = BYTES;
	isochronous.urb.number_of_packets = count;
	for (at = 0; at < 129; at++)
		isochronous.packets[at].length = bytes;
	return ask(file, USBDEVFS_SUBMITURB, &isochronous);
}

static void settings(void)
{
	int file = opened(O_RDWR), at;
	void *urb;

	tell("SETINTERFACE, 0", set_interface(file, interface, 0));
	tell("submit, an endpoint of another setting", submit_packets(file, in, PACKETS, 64));
	tell("BULK, an endpoint of another setting", bulk(file, in, data, 64, SOON_MS));
	tell("SETINTERFACE, 1", set_interface(file, interface, 1));
	tell("GET_INTERFACE", control(file, 0x81, 10, 0, interface, data, 1) == 1 ? data[0] : -1);
	tell("submit, 0 packets", submit_packets(file, in, 0, 64));
	tell("submit, 129 packets", submit_packets(file, in, 129, 64));
	tell("submit, a packet of 98305 bytes", submit_packets(file, in, 1, 98305));
	tell("submit, bulk at an isochronous endpoint", submit(file, 0, USBDEVFS_URB_TYPE_BULK, in, 0, data, 64));
	tell("submit, interrupt at an isochronous endpoint", submit(file, 0, USBDEVFS_URB_TYPE_INTERRUPT, in, 0, data, 64));
	tell("submit packets", submit_packets(file, in, PACKETS, out));
	tell("poll for them", polled(file, POLLOUT, PATIENCE_MS));
	tell("reap them", ask(file, USBDEVFS_REAPURBNDELAY, &urb));
	printf("they ended: status %d, %d errors\n", isochronous.urb.status, isochronous.urb.error_count);
	for (at = 0; at < PACKETS; at++)
		printf("packet %d: room %u, status %d\n", at, isochronous.packets[at].length, isochronous.packets[at].status);
	printf("packet %d, which is none: room %u, status %d, %d bytes\n", at, isochronous.packets[at].length, isochronous.packets[at].status,
	       isochronous.packets[at].actual_length);
	tell("RESET", ask(file, USBDEVFS_RESET, NULL));
	tell("GET_INTERFACE after a reset", control(file, 0x81, 10, 0, interface, data, 1) == 1 ? data[0] : -1);
	tell("SETINTERFACE, 0", set_interface(file, interface, 0));
	tell("GET_INTERFACE", control(file, 0x81, 10, 0, interface, data, 1) == 1 ? data[0] : -1);
	close(file);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = { { "rules", rules }, { "loop", loop }, { "source", source }, { "settings", settings } };
	unsigned at;

	if (argc != 6) {
		printf("usbfs: five arguments\n");
		return 2;
	}
	path = argv[2];
	interface = atoi(argv[3]);
	in = strtoul(argv[4], NULL, 16);
	out = strtoul(argv[5], NULL, 16);
	data = calloc(2, BYTES);
	other_data = data + BYTES;
	for (at = 0; at < sizeof parts / sizeof *parts; at++)
		if (!strcmp(parts[at].name, argv[1])) {
			parts[at].run();
			return 0;
		}
	printf("usbfs: no such part\n");
	return 2;
}
