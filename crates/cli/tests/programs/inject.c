/* Makes another process do system calls, as one that was taken over would: stops one of its threads, has it do each call, and lets it go on
 * as if nothing had been. x86-64. Prints a line for each call: its number or its name, a space, and what the kernel answered.
 *
 *   inject PID all       each number up to 470, with arguments that make no sense to any call
 *   inject PID attempts  what an intruder would try, on things that are there
 *   inject PID state FOLDER NAME...
 *                        every way to change these files, and what is in their folder
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t target;
static struct user_regs_struct saved;
/* Below the thread's stack, and below what the compiler may use there. */
static uint64_t scratch;

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static void stop_at_call(void)
{
	if (ptrace(PTRACE_ATTACH, target, 0, 0))
		fail("attach");
	for (int patience = 0; patience < 1000; patience++) {
		int status;
		if (waitpid(target, &status, __WALL) != target || !WIFSTOPPED(status))
			fail("wait for the stop");
		if (ptrace(PTRACE_GETREGS, target, 0, &saved))
			fail("read registers");
		errno = 0;
		long word = ptrace(PTRACE_PEEKTEXT, target, saved.rip - 2, 0);
		if (errno == 0 && (word & 0xffff) == 0x050f) {
			scratch = (saved.rsp - 16384) & ~15ULL;
			return;
		}
		/* It was not in a call: look again a little later. */
		if (ptrace(PTRACE_CONT, target, 0, 0))
			fail("continue");
		usleep(10000);
		if (kill(target, SIGSTOP))
			fail("stop");
	}
	fprintf(stderr, "it is never in a system call\n");
	exit(1);
}

static int64_t call(long number, const uint64_t arguments[6])
{
	struct user_regs_struct registers = saved;
	registers.rip = saved.rip - 2;
	registers.rax = number;
	registers.orig_rax = -1;
	registers.rdi = arguments[0];
	registers.rsi = arguments[1];
	registers.rdx = arguments[2];
	registers.r10 = arguments[3];
	registers.r8 = arguments[4];
	registers.r9 = arguments[5];
	if (ptrace(PTRACE_SETREGS, target, 0, &registers))
		fail("set registers");
	if (ptrace(PTRACE_SINGLESTEP, target, 0, 0))
		fail("step");
	int status;
	if (waitpid(target, &status, __WALL) != target || !WIFSTOPPED(status)) {
		fprintf(stderr, "call %ld ended the process\n", number);
		exit(1);
	}
	if (ptrace(PTRACE_GETREGS, target, 0, &registers))
		fail("read registers");
	return (int64_t)registers.rax;
}

/* Puts a text into the target; returns where. */
static uint64_t text(int slot, const char *bytes)
{
	uint64_t at = scratch + 256 * slot;
	char padded[256] = { 0 };
	strncpy(padded, bytes, sizeof padded - 1);
	for (size_t offset = 0; offset < sizeof padded; offset += 8) {
		long word;
		memcpy(&word, padded + offset, 8);
		if (ptrace(PTRACE_POKEDATA, target, at + offset, word))
			fail("write memory");
	}
	return at;
}

static void attempt(const char *name, long number, uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	uint64_t arguments[6] = { a, b, c, d, 0, 0 };
	printf("%s %lld\n", name, (long long)call(number, arguments));
}

static void attempts(const char *folder)
{
	char path[200];
	snprintf(path, sizeof path, "%s/injected", folder);
	uint64_t passwd = text(0, "/etc/passwd"), fresh = text(1, path), shell = text(2, "/bin/sh"), here = text(3, folder);
	attempt("read-a-file", SYS_openat, AT_FDCWD, passwd, O_RDONLY, 0);
	attempt("create-a-file", SYS_openat, AT_FDCWD, fresh, O_WRONLY | O_CREAT, 0644);
	attempt("list-a-folder", SYS_openat, AT_FDCWD, here, O_RDONLY | O_DIRECTORY, 0);
	attempt("make-a-folder", SYS_mkdir, fresh, 0755, 0, 0);
	attempt("remove", SYS_unlink, passwd, 0, 0, 0);
	attempt("rename", SYS_rename, passwd, fresh, 0, 0);
	attempt("link", SYS_link, passwd, fresh, 0, 0);
	attempt("chmod", SYS_chmod, here, 0777, 0, 0);
	attempt("chown", SYS_chown, here, 0, 0, 0);
	attempt("mknod", SYS_mknod, fresh, S_IFCHR | 0666, 0x101, 0);
	attempt("run-a-program", SYS_execve, shell, 0, 0, 0);
	attempt("fork", SYS_clone, SIGCHLD, 0, 0, 0);
	attempt("signal-init", SYS_kill, 1, 0, 0, 0);
	attempt("signal-a-thread", SYS_tgkill, 1, 1, 0, 0);
	attempt("trace-init", SYS_ptrace, PTRACE_SEIZE, 1, 0, 0);
	attempt("read-another-process", SYS_process_vm_readv, 1, 0, 0, 0);
	attempt("tcp-socket", SYS_socket, AF_INET, SOCK_STREAM, 0, 0);
	attempt("raw-socket", SYS_socket, AF_PACKET, SOCK_RAW, 0, 0);
	attempt("local-socket", SYS_socket, AF_UNIX, SOCK_STREAM, 0, 0);
	attempt("become-root", SYS_setresuid, 0, 0, 0, 0);
	attempt("take-capabilities", SYS_capset, scratch, scratch, 0, 0);
	attempt("new-namespace", SYS_unshare, 0x10000000, 0, 0, 0);
	attempt("mount", SYS_mount, here, here, 0, 0);
	attempt("load-a-module", SYS_finit_module, 0, 0, 0, 0);
	attempt("bpf", SYS_bpf, 0, 0, 0, 0);
	attempt("io-uring", SYS_io_uring_setup, 8, scratch, 0, 0);
	attempt("perf", SYS_perf_event_open, scratch, 0, -1, -1);
	attempt("userfaultfd", SYS_userfaultfd, 0, 0, 0, 0);
	attempt("keys", SYS_keyctl, 0, 0, 0, 0);
	attempt("another-filter", SYS_prctl, 22, 2, 0, 0);
	attempt("dump-memory", SYS_prctl, 4, 1, 0, 0);
	attempt("own-signals-of-a-descriptor", SYS_fcntl, 0, F_SETOWN, 1, 0);
	attempt("terminal-input", SYS_ioctl, 0, 0x5412, scratch, 0);
	attempt("raise-limits", SYS_prlimit64, 0, 7, scratch, 0);
}

static void change(const char *folder, const char *name)
{
	static const struct { const char *name; uint64_t flags; } ways[] = {
		{ "write", O_WRONLY }, { "read-and-write", O_RDWR }, { "append", O_WRONLY | O_APPEND },
		{ "shorten", O_WRONLY | O_TRUNC }, { "shorten-reading", O_RDONLY | O_TRUNC },
		{ "make", O_RDONLY | O_CREAT },
	};
	char path[200], other[200], shown[300];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	snprintf(other, sizeof other, "%s/%s.new", folder, name);
	uint64_t it = text(0, path), fresh = text(1, other), parent = text(2, folder);
	for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
		snprintf(shown, sizeof shown, "%s:%s", ways[way].name, name);
		attempt(shown, SYS_openat, AT_FDCWD, it, ways[way].flags, 0600);
	}
	attempt("make-beside", SYS_openat, AT_FDCWD, fresh, O_WRONLY | O_CREAT | O_EXCL, 0600);
	attempt("make-without-a-name", SYS_openat, AT_FDCWD, parent, O_TMPFILE | O_RDWR, 0600);
	attempt("open", SYS_open, it, O_WRONLY, 0, 0);
	attempt("creat", SYS_creat, it, 0600, 0, 0);
	attempt("truncate", SYS_truncate, it, 0, 0, 0);
	attempt("unlink", SYS_unlink, it, 0, 0, 0);
	attempt("unlinkat", SYS_unlinkat, AT_FDCWD, it, 0, 0);
	attempt("rename", SYS_rename, it, fresh, 0, 0);
	attempt("renameat", SYS_renameat, AT_FDCWD, it, AT_FDCWD, fresh);
	attempt("renameat2", SYS_renameat2, AT_FDCWD, it, AT_FDCWD, fresh);
	attempt("link", SYS_link, it, fresh, 0, 0);
	attempt("linkat", SYS_linkat, AT_FDCWD, it, AT_FDCWD, fresh);
	attempt("symlink", SYS_symlink, it, fresh, 0, 0);
	attempt("mkdir", SYS_mkdir, fresh, 0700, 0, 0);
	attempt("mkdirat", SYS_mkdirat, AT_FDCWD, fresh, 0700, 0);
	attempt("chmod", SYS_chmod, it, 0666, 0, 0);
	attempt("fchmodat", SYS_fchmodat, AT_FDCWD, it, 0666, 0);
	attempt("setxattr", SYS_setxattr, it, parent, parent, 1);
	attempt("mknod", SYS_mknod, fresh, S_IFREG | 0600, 0, 0);
}

int main(int count, char **words)
{
	if (count < 3)
		return 2;
	target = atoi(words[1]);
	stop_at_call();
	if (!strcmp(words[2], "all")) {
		for (long number = 0; number <= 470; number++) {
			/* exit, exit_group, rt_sigreturn and restart_syscall: they need no permission, and end the try. */
			if (number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn || number == SYS_restart_syscall)
				continue;
			uint64_t nonsense[6] = { -1, -1, -1, -1, -1, -1 };
			printf("%ld %lld\n", number, (long long)call(number, nonsense));
		}
	} else if (!strcmp(words[2], "state")) {
		for (int word = 4; word < count; word++)
			change(words[3], words[word]);
	} else {
		attempts(count > 3 ? words[3] : "/tmp");
	}
	if (ptrace(PTRACE_SETREGS, target, 0, &saved) || ptrace(PTRACE_DETACH, target, 0, 0))
		fail("let it go on");
	return 0;
}
