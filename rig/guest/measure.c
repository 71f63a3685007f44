/*
 * measure VERB ...: what a guest measures of devices that are far away, by the kernel's own interfaces alone. Knows nothing of farbus.
 *
 *   attach DRIVER COMMAND...    starts COMMAND, and says when a device that came through vhci has this driver:
 *                               "MS since it was started, MS since it began its session"
 *   read DEVICE BYTES TOTAL     reads in order past the page cache: "KIB/S"
 *   write DEVICE BYTES TOTAL    writes in order past the page cache, and flushes: "KIB/S"
 *   random DEVICE BYTES COUNT   reads here and there, one after the other: "MEDIAN MAX", in microseconds
 *   reports GADGET EVENTS COUNT says COUNT reports of a mouse at GADGET, one a millisecond, and looks for them at EVENTS
 *   bytes FROM TO TOTAL BITS STALL
 *                               says TOTAL bytes at FROM, as fast as a line of so many bits a second would, and reads them at TO, where
 *                               it looks away for STALL milliseconds in the middle
 *   fill FILE TOTAL             makes a file whose words say where they stand, as "read" and "random" expect it
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/input.h>
#include <linux/netlink.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static void give_up(const char *doing)
{
	printf("measure: %s: %s\n", doing, strerror(errno));
	exit(1);
}

static int64_t now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

static void sleep_until(int64_t us)
{
	struct timespec t = { us / 1000000, us % 1000000 * 1000 };
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static int open_or_give_up(const char *path, int flags)
{
	int fd = open(path, flags, 0600);
	if (fd < 0)
		give_up(path);
	return fd;
}

static void *aligned(size_t bytes)
{
	void *memory = NULL;
	if (posix_memalign(&memory, 4096, bytes))
		give_up("memory");
	memset(memory, 0, bytes);
	return memory;
}

/* Where a word stands in a disk; 0 in one that is made of nothing. */
static void fill_words(uint64_t *words, size_t bytes, uint64_t offset)
{
	size_t i;
	for (i = 0; i < bytes / 8; i++)
		words[i] = offset + 8 * i;
}

/* Every word of a piece that has words at all; its first one and a few in between would do, but a block that is another's has to show. */
static void check_words(const uint64_t *words, size_t bytes, uint64_t offset)
{
	size_t i;
	if (words[1] == 0 && words[bytes / 8 - 1] == 0)
		return;
	for (i = 0; i < bytes / 8; i += 64)
		if (words[i] != offset + 8 * i) {
			printf("measure: at %llu stands %llu\n", (unsigned long long)(offset + 8 * i), (unsigned long long)words[i]);
			exit(1);
		}
}

/* The kernel says when a driver has a device: not when it begins to look at it, which is what its folders show. */
static int listen_to_kernel(void)
{
	struct sockaddr_nl all = { .nl_family = AF_NETLINK, .nl_groups = 1 };
	int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	if (fd < 0 || bind(fd, (struct sockaddr *)&all, sizeof all))
		give_up("netlink");
	return fd;
}

/* Whether one of its messages, of those that are there, says that an interface of a device behind vhci has this driver. */
static int says_bound(int fd, const char *driver)
{
	static char text[8192];
	char wanted[128];
	ssize_t count;
	size_t at;

	snprintf(wanted, sizeof wanted, "DRIVER=%s", driver);
	while ((count = recv(fd, text, sizeof text - 1, 0)) > 0) {
		text[count] = 0;
		if (strncmp(text, "bind@", 5) || !strstr(text, "vhci_hcd") || !strstr(text, ":1."))
			continue;
		for (at = 0; at < (size_t)count; at += strlen(text + at) + 1)
			if (!strcmp(text + at, wanted))
				return 1;
	}
	return 0;
}

static int holds(const char *path, const char *words)
{
	static char text[65536];
	int fd = open(path, O_RDONLY), found;
	ssize_t count;

	if (fd < 0)
		return 0;
	count = read(fd, text, sizeof text - 1);
	close(fd);
	if (count <= 0)
		return 0;
	text[count] = 0;
	found = strstr(text, words) != NULL;
	return found;
}

static int attach(const char *driver, char **command)
{
	const char *log = "/run/attach.log";
	int64_t start, session = 0, bound;
	int fd = open_or_give_up(log, O_CREAT | O_TRUNC | O_WRONLY | O_APPEND), kernel = listen_to_kernel();

	signal(SIGCHLD, SIG_IGN);
	start = now_us();
	if (fork() == 0) {
		signal(SIGCHLD, SIG_DFL);
		dup2(fd, 1);
		dup2(fd, 2);
		execvp(command[0], command);
		_exit(127);
	}
	while (!says_bound(kernel, driver)) {
		struct pollfd ready = { kernel, POLLIN, 0 };
		if (!session && holds(log, "session began"))
			session = now_us();
		if (now_us() - start > 60000000) {
			printf("measure: no device has the driver %s\n", driver);
			return 1;
		}
		poll(&ready, 1, session ? 1000 : 1);
	}
	bound = now_us();
	printf("%lld %lld\n", (long long)(bound - start) / 1000, session ? (long long)(bound - session) / 1000 : -1);
	return 0;
}

static int in_order(const char *device, size_t bytes, uint64_t total, int writes)
{
	int fd = open_or_give_up(device, (writes ? O_WRONLY : O_RDONLY) | O_DIRECT);
	uint64_t *words = aligned(bytes), at;
	int64_t start = now_us();

	for (at = 0; at + bytes <= total; at += bytes) {
		if (writes)
			fill_words(words, bytes, at);
		if ((writes ? pwrite(fd, words, bytes, at) : pread(fd, words, bytes, at)) != (ssize_t)bytes)
			give_up(device);
		if (!writes)
			check_words(words, bytes, at);
	}
	if (writes && fsync(fd))
		give_up("flush");
	printf("%lld\n", (long long)(total * 1000000 / 1024 / (now_us() - start)));
	return 0;
}

static int by_size(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static int here_and_there(const char *device, size_t bytes, int count)
{
	int fd = open_or_give_up(device, O_RDONLY | O_DIRECT), i;
	int64_t *took = calloc(count, sizeof *took);
	uint64_t *words = aligned(bytes), blocks = lseek(fd, 0, SEEK_END) / bytes, seed = 1;

	for (i = 0; i < count; i++) {
		uint64_t at;
		int64_t start;
		seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
		at = (seed >> 33) % blocks * bytes;
		start = now_us();
		if (pread(fd, words, bytes, at) != (ssize_t)bytes)
			give_up(device);
		took[i] = now_us() - start;
		check_words(words, bytes, at);
	}
	qsort(took, count, sizeof *took, by_size);
	printf("%lld %lld\n", (long long)took[count / 2], (long long)took[count - 1]);
	return 0;
}

/* One report a millisecond: 16 bits of movement, which count 1 to 30000 over and over, so that none can be missing or in another's place. */
enum { LAP = 30000, WARM = 2000 };

static int reports(const char *gadget, const char *events, int count)
{
	int64_t *said = mmap(NULL, count * sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), start;
	int64_t *took = calloc(count, sizeof *took);
	int fd = open_or_give_up(events, O_RDONLY), clock = CLOCK_MONOTONIC, heard = 0, wrong = 0, dropped = 0, status;
	pid_t child;

	if (ioctl(fd, EVIOCSCLOCKID, &clock))
		give_up("EVIOCSCLOCKID");
	child = fork();
	if (child == 0) {
		int out = open_or_give_up(gadget, O_WRONLY), i;
		/* By then the device is asked. */
		start = now_us() + 500000;
		for (i = 0; i < count; i++) {
			uint16_t moved = i % LAP + 1;
			unsigned char report[4] = { moved & 0xff, moved >> 8, 0, 0 };
			sleep_until(start + i * 1000LL);
			said[i] = now_us();
			if (write(out, report, 4) != 4)
				give_up(gadget);
		}
		printf("said in %lld ms; ", (long long)(now_us() - start) / 1000);
		fflush(stdout);
		_exit(0);
	}
	while (heard < count) {
		struct pollfd ready = { fd, POLLIN, 0 };
		struct input_event event;
		if (poll(&ready, 1, 5000) <= 0 || read(fd, &event, sizeof event) != sizeof event)
			break;
		if (event.type == EV_SYN && event.code == SYN_DROPPED)
			dropped++;
		if (event.type != EV_REL || event.code != REL_X)
			continue;
		wrong += event.value != heard % LAP + 1;
		took[heard] = event.input_event_sec * 1000000LL + event.input_event_usec - said[heard];
		heard++;
	}
	if (heard < count)
		kill(child, SIGKILL);
	waitpid(child, &status, 0);
	/* A link that has had nothing to carry takes a moment to believe that it may carry much. */
	if (heard > WARM) {
		qsort(took + WARM, heard - WARM, sizeof *took, by_size);
		printf("after the first two seconds at most %lld us; ", (long long)took[heard - 1]);
	}
	qsort(took, heard, sizeof *took, by_size);
	printf("%d of %d reports, %d not in their place, %d times dropped, median %lld us, at most %lld us\n", heard, count, wrong, dropped,
	       (long long)(heard ? took[heard / 2] : 0), (long long)(heard ? took[heard - 1] : 0));
	return heard != count || wrong || dropped || status;
}

static void raw(int fd)
{
	struct termios t;
	if (tcgetattr(fd, &t))
		give_up("tcgetattr");
	cfmakeraw(&t);
	cfsetspeed(&t, B3000000);
	if (tcsetattr(fd, TCSANOW, &t))
		give_up("tcsetattr");
}

static unsigned char byte_at(uint64_t at)
{
	return (at * 2654435761u >> 13) ^ at;
}

static int bytes(const char *from, const char *to, uint64_t total, uint64_t bits, int stall)
{
	int out = open_or_give_up(from, O_RDWR | O_NOCTTY), in = strcmp(from, to) ? open_or_give_up(to, O_RDWR | O_NOCTTY) : out, status;
	static unsigned char piece[4096];
	/* What a terminal passes on at a time: smaller pieces would each be a transfer of their own. */
	const size_t at_once = 2048;
	uint64_t heard = 0, wrong = 0, stalled = 0;
	int64_t start, end;
	ssize_t count, i;
	pid_t child;

	raw(out);
	if (in != out)
		raw(in);
	start = now_us();
	child = fork();
	if (child == 0) {
		uint64_t said = 0;
		/* A byte is ten bits on such a line. */
		while (said < total) {
			size_t room = at_once < total - said ? at_once : total - said;
			for (i = 0; i < (ssize_t)room; i++)
				piece[i] = byte_at(said + i);
			sleep_until(start + said * 10 * 1000000 / bits);
			count = write(out, piece, room);
			if (count <= 0)
				give_up(from);
			said += count;
		}
		_exit(0);
	}
	end = start;
	while (heard < total) {
		struct pollfd ready = { in, POLLIN, 0 };
		if (stall && !stalled && heard > total / 2) {
			stalled = 1;
			sleep_until(now_us() + stall * 1000LL);
		}
		if (poll(&ready, 1, 10000) <= 0)
			break;
		count = read(in, piece, sizeof piece);
		if (count <= 0)
			break;
		for (i = 0; i < count; i++)
			wrong += piece[i] != byte_at(heard + i);
		heard += count;
		end = now_us();
	}
	if (heard < total)
		kill(child, SIGKILL);
	waitpid(child, &status, 0);
	printf("%llu of %llu bytes, %llu wrong, in %lld ms: %lld B/s\n", (unsigned long long)heard, (unsigned long long)total,
	       (unsigned long long)wrong, (long long)(end - start) / 1000, (long long)(heard * 1000000 / (end - start)));
	return heard != total || wrong;
}

static int fill(const char *path, uint64_t total)
{
	static uint64_t words[1 << 17];
	int fd = open_or_give_up(path, O_CREAT | O_WRONLY);
	uint64_t at;

	for (at = 0; at < total; at += sizeof words) {
		fill_words(words, sizeof words, at);
		if (pwrite(fd, words, sizeof words, at) != sizeof words)
			give_up(path);
	}
	return 0;
}

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";

	if (!strcmp(verb, "attach") && argc > 3)
		return attach(argv[2], argv + 3);
	if ((!strcmp(verb, "read") || !strcmp(verb, "write")) && argc == 5)
		return in_order(argv[2], atol(argv[3]), atoll(argv[4]), verb[0] == 'w');
	if (!strcmp(verb, "random") && argc == 5)
		return here_and_there(argv[2], atol(argv[3]), atoi(argv[4]));
	if (!strcmp(verb, "reports") && argc == 5)
		return reports(argv[2], argv[3], atoi(argv[4]));
	if (!strcmp(verb, "bytes") && argc == 7)
		return bytes(argv[2], argv[3], atoll(argv[4]), atoll(argv[5]), atoi(argv[6]));
	if (!strcmp(verb, "fill") && argc == 4)
		return fill(argv[2], atoll(argv[3]));
	printf("measure: no such verb: %s\n", verb);
	return 2;
}
