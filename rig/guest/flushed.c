/* Four threads that write and read a disk, each its own part, and know what a flush has covered. Every sector says its place and its version, so
 * that lost, old and foreign bytes are told apart. What is known lies in a file, which outlives this program and its disk.
 *
 *   flushed DISK STATE           works until it is terminated, or until its disk is gone (status 3)
 *   flushed DISK STATE look      reads all of it once, and prints what is known
 *   flushed STATE settle SECONDS waits until each thread has made a flush that began after now; prints the milliseconds
 *   flushed STATE errors         prints how many writes and flushes have failed
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <linux/fs.h>
#include <time.h>
#include <unistd.h>

#define SECTOR 512
#define THREADS 4
#define SECTORS 1024
#define RUN_MAX 64
#define MAGIC 0x66617262

struct sector {
	/* The version that the last flush covered, the one that reads have to return at least, and the last one that was written. */
	uint32_t durable, now, latest;
	/* Nothing has failed since it was written: reads return the last version, and a flush covers that. */
	uint32_t is_exact;
};

struct part {
	_Atomic uint64_t begun, flushes, requests, lost, stale;
	uint32_t version;
	struct sector sectors[SECTORS];
};

struct state {
	_Atomic uint64_t errors;
	struct part parts[THREADS];
};

static struct state *state;
static const char *disk;
static atomic_int is_over, is_gone;

static void die(const char *what)
{
	fprintf(stderr, "flushed: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void stop(int signal)
{
	(void)signal;
	is_over = 1;
}

static void fill(uint32_t *words, uint32_t place, uint32_t version)
{
	words[0] = MAGIC;
	words[1] = place;
	words[2] = version;
	for (uint32_t word = 3; word < SECTOR / 4; word++)
		words[word] = version * 2654435761u + place * 40503u + word;
}

/* The version that a sector holds; -1 if these bytes were never written there. */
static int64_t version_in(const uint32_t *words, uint32_t place)
{
	uint32_t whole[SECTOR / 4] = { 0 };
	if (words[0] == MAGIC)
		fill(whole, place, words[2]);
	return memcmp(whole, words, SECTOR) ? -1 : (int64_t)whole[2];
}

/* After an error, what was not flushed may be as it was at any moment since. */
static void loosen(struct part *part)
{
	for (int at = 0; at < SECTORS; at++) {
		struct sector *sector = &part->sectors[at];
		if (sector->latest != sector->durable) {
			sector->is_exact = 0;
			sector->now = sector->durable;
		}
	}
}

/* Whether the disk is still there. */
static int is_there(void)
{
	uint64_t bytes = 0;
	int fd = open(disk, O_RDONLY | O_CLOEXEC);
	int there = fd >= 0 && ioctl(fd, BLKGETSIZE64, &bytes) == 0 && bytes > 0;
	if (fd >= 0)
		close(fd);
	return there;
}

/* Counts what a read has found. Returns how many sectors are older than what was answered, which an error by the next flush would explain. */
static uint64_t judge(struct part *part, uint32_t first, uint32_t base, uint32_t count, const uint32_t *words)
{
	uint64_t old = 0;
	for (uint32_t at = 0; at < count; at++) {
		struct sector *sector = &part->sectors[first + at];
		int64_t found = version_in(words + at * (SECTOR / 4), base + first + at);
		if (found < sector->durable || found > sector->latest) {
			printf("sector %u holds version %lld: %u is durable, %u was written last\n", base + first + at, (long long)found,
			       sector->durable, sector->latest);
			part->lost++;
		} else if (found < sector->now) {
			old++;
		}
	}
	return old;
}

static void *work(void *which)
{
	uint32_t number = (uintptr_t)which, base = number * SECTORS;
	struct part *part = &state->parts[number];
	uint32_t *bytes = NULL;
	unsigned seed = number + 1 + 1000 * part->version;
	if (posix_memalign((void **)&bytes, 4096, RUN_MAX * SECTOR))
		die("memory");
	int fd = open(disk, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		die(disk);
	/* What is not flushed may have been lost with the disk that was there before. */
	loosen(part);
	uint64_t known = state->errors, suspected = 0;
	while (!is_over && !is_gone) {
		uint32_t count = 1 + rand_r(&seed) % RUN_MAX, first = rand_r(&seed) % (SECTORS - count + 1);
		off_t offset = (off_t)(base + first) * SECTOR;
		unsigned what = rand_r(&seed) % 8;
		uint64_t seen = state->errors;
		ssize_t done;
		part->requests++;
		if (what == 0) {
			part->begun++;
			uint64_t begun = part->begun;
			done = fdatasync(fd);
			if (done == 0 && state->errors == seen && known == seen) {
				for (int at = 0; at < SECTORS; at++)
					if (part->sectors[at].is_exact)
						part->sectors[at].durable = part->sectors[at].latest;
				part->stale += suspected;
				part->flushes = begun;
			}
			if (done == 0)
				suspected = 0;
		} else if (what < 5) {
			for (uint32_t at = 0; at < count; at++) {
				part->sectors[first + at].is_exact = 0;
				part->sectors[first + at].latest = ++part->version;
				fill(bytes + at * (SECTOR / 4), base + first + at, part->version);
			}
			done = pwrite(fd, bytes, count * SECTOR, offset) == (ssize_t)(count * SECTOR) ? 0 : -1;
			for (uint32_t at = 0; done == 0 && at < count; at++) {
				part->sectors[first + at].is_exact = 1;
				part->sectors[first + at].now = part->sectors[first + at].latest;
			}
		} else {
			done = pread(fd, bytes, count * SECTOR, offset) == (ssize_t)(count * SECTOR) ? 0 : -1;
			if (done == 0 && known != state->errors)
				loosen(part);
			if (done == 0)
				suspected += judge(part, first, base, count, bytes);
		}
		if (done) {
			/* An error of a read says nothing of what was written. */
			if (what < 5)
				state->errors++;
			if (!is_there())
				is_gone = 1;
			usleep(20000);
		}
		if (known != state->errors) {
			known = state->errors;
			suspected = 0;
			loosen(part);
		}
	}
	close(fd);
	free(bytes);
	return NULL;
}

static void look(void)
{
	static uint32_t bytes[SECTORS * SECTOR / 4] __attribute__((aligned(4096)));
	uint64_t lost = 0, stale = 0, requests = 0, flushes = 0;
	int fd = open(disk, O_RDONLY | O_DIRECT | O_CLOEXEC);
	if (fd < 0)
		die(disk);
	for (uint32_t number = 0; number < THREADS; number++) {
		struct part *part = &state->parts[number];
		if (pread(fd, bytes, sizeof bytes, (off_t)number * sizeof bytes) != sizeof bytes)
			die("read");
		loosen(part);
		judge(part, 0, number * SECTORS, SECTORS, bytes);
		lost += part->lost;
		stale += part->stale;
		requests += part->requests;
		flushes += part->flushes;
	}
	close(fd);
	printf("flushed: %llu bytes lost, %llu stale reads, %llu errors told, %llu requests, %llu flushes\n", (unsigned long long)lost * SECTOR,
	       (unsigned long long)stale, (unsigned long long)state->errors, (unsigned long long)requests, (unsigned long long)flushes);
}

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ULL + now.tv_nsec / 1000000;
}

static int settle(unsigned seconds)
{
	uint64_t began = now_ms(), before[THREADS];
	for (int number = 0; number < THREADS; number++)
		before[number] = state->parts[number].begun;
	for (int number = 0; number < THREADS;) {
		if (state->parts[number].flushes > before[number]) {
			number++;
		} else if (now_ms() - began > seconds * 1000ULL) {
			printf("thread %d makes no flush\n", number);
			return 1;
		} else {
			usleep(5000);
		}
	}
	printf("%llu\n", (unsigned long long)(now_ms() - began));
	return 0;
}

static void open_state(const char *path)
{
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof *state))
		die(path);
	state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (state == MAP_FAILED)
		die("map");
	close(fd);
}

int main(int count, char **words)
{
	setlinebuf(stdout);
	if (count >= 3 && !strcmp(words[2], "errors")) {
		open_state(words[1]);
		printf("%llu\n", (unsigned long long)state->errors);
		return 0;
	}
	if (count == 4 && !strcmp(words[2], "settle")) {
		open_state(words[1]);
		return settle(atoi(words[3]));
	}
	if (count < 3)
		return 2;
	disk = words[1];
	open_state(words[2]);
	if (count > 3) {
		look();
		return 0;
	}
	signal(SIGTERM, stop);
	pthread_t threads[THREADS];
	for (uintptr_t number = 0; number < THREADS; number++)
		if (pthread_create(&threads[number], NULL, work, (void *)number))
			die("thread");
	for (int number = 0; number < THREADS; number++)
		pthread_join(threads[number], NULL);
	return is_gone ? 3 : 0;
}
