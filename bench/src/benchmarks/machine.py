# A machine with a database that moves, as QEMU's do: SQLite on a block disk that this process has by NBD, and a second
# connection that continues where the first ended. SQLite asks the disk through a VFS of its own, so nothing is mounted.
#
# Lines in: a socket, the disk to begin with; "there SOCKET", a second server of it; "stop", at the next request; "go",
# with the second server; "end". Lines out: ready, committed, there, stopped, gone, and at last what was written and
# what of it is lost.
import ctypes as C, os, select, socket, sqlite3, struct, sys, zlib

BLOCK = 4096
READ, WRITE, FLUSH = 0, 1, 3


class Server:
    """One connection to the disk: fixed newstyle without zeroes, the default export."""

    def __init__(self, path):
        self.socket, self.cookie = socket.socket(socket.AF_UNIX), 0
        self.socket.connect(path)
        assert self.receive(18)[:16] == b"NBDMAGICIHAVEOPT"
        self.socket.sendall(struct.pack(">I", 3) + b"IHAVEOPT" + struct.pack(">II", 1, 0))
        self.bytes, flags = struct.unpack(">QH", self.receive(10))
        assert not flags & 2, "it is read-only"

    def receive(self, count):
        data = bytearray()
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise OSError("the disk hung up")
            data += piece
        return bytes(data)

    def ask(self, command, offset, length, data=b""):
        self.cookie += 1
        head = struct.pack(">IHHQQI", 0x25609513, 0, command, self.cookie, offset, length)
        self.socket.sendall(head + data)
        magic, error, cookie = struct.unpack(">IIQ", self.receive(16))
        assert (magic, cookie) == (0x67446698, self.cookie)
        if error:
            raise OSError(error, "the disk")
        return self.receive(length) if command == READ else b""


class Disk:
    """The machine's disk, whichever server it has now."""

    def __init__(self, path):
        self.here, self.there = Server(path), None
        self.bytes = self.here.bytes
        # The checksum of each block as it was written and answered last.
        self.written, self.bytes_written, self.is_over = {}, 0, False

    def ask(self, *words):
        # A machine is stopped between any two requests, not only between transactions.
        while select.select([sys.stdin], [], [], 0)[0]:
            self.obey(sys.stdin.readline().split())
            if self.is_over:
                break
        return self.here.ask(*words)

    def obey(self, words):
        if words[:1] == ["there"]:
            self.there = Server(words[1])
            self.there.ask(READ, 0, BLOCK)
            print("there", flush=True)
        elif words == ["stop"]:
            print("stopped", flush=True)
            self.obey(sys.stdin.readline().split())
        elif words == ["go"]:
            self.here, self.there = self.there, None
            print("gone", flush=True)
        else:
            assert words in ([], ["end"]), words
            self.is_over = True

    def read(self, offset, length):
        first, last = offset // BLOCK * BLOCK, -(-(offset + length) // BLOCK) * BLOCK
        return self.ask(READ, first, last - first)[offset - first :][:length]

    def write(self, offset, data):
        assert offset % BLOCK == 0 and len(data) == BLOCK, "SQLite writes pages"
        self.ask(WRITE, offset, BLOCK, data)
        self.written[offset] = zlib.crc32(data)
        self.bytes_written += BLOCK

    def flush(self):
        self.ask(FLUSH, 0, 0)

    def lost(self):
        """Bytes of blocks that do not hold what was written to them last."""
        return sum(BLOCK for at, sum_ in self.written.items() if zlib.crc32(self.read(at, BLOCK)) != sum_)


def vfs(disk):
    """Registers `disk` with the SQLite of this process as the only file of the VFS "disk"."""
    lib = C.CDLL(find_library())
    file, ok, ioerr, unknown = C.c_void_p, 0, 10, 12

    def call(act, *types):
        # An exception would be printed and forgotten.
        def guarded(*arguments):
            try:
                return act(*arguments) or ok
            except BaseException as error:
                print(error, file=sys.stderr)
                return ioerr

        return C.CFUNCTYPE(C.c_int, *types)(guarded)

    def size(_, to):
        to[0] = disk.bytes

    i32, i64, to_i32, to_i64 = C.c_int, C.c_int64, C.POINTER(C.c_int), C.POINTER(C.c_int64)
    nothing = lambda *_: ok
    calls = [
        call(nothing, file),  # close
        call(lambda _, to, n, at: C.memmove(to, disk.read(at, n), n) and ok, file, C.c_void_p, i32, i64),
        call(lambda _, of, n, at: disk.write(at, C.string_at(of, n)), file, C.c_void_p, i32, i64),
        call(nothing, file, i64),  # truncate
        call(lambda *_: disk.flush(), file, i32),
        call(size, file, to_i64),
        call(nothing, file, i32),  # lock
        call(nothing, file, i32),  # unlock
        call(lambda _, to: to.__setitem__(0, 0), file, to_i32),  # is it reserved?
        call(lambda *_: unknown, file, i32, C.c_void_p),  # file control
        call(lambda *_: BLOCK, file),  # sector size
        call(nothing, file),  # characteristics
    ]
    methods = (C.c_void_p * 13)(1, *[C.cast(it, C.c_void_p) for it in calls])
    C.cast(methods, C.POINTER(C.c_int))[0] = 1

    class Vfs(C.Structure):
        # Of version 3; what is not named here stays as the default VFS has it.
        _fields_ = [("version", i32), ("file_bytes", i32), ("path_max", i32), ("next", C.c_void_p)]
        _fields_ += [("name", C.c_char_p), ("data", C.c_void_p), ("open", C.c_void_p), ("rest", C.c_void_p * 17)]

    def open_(_, name, to, flags, out):
        C.cast(to, C.POINTER(C.c_void_p))[0] = C.addressof(methods)
        if out:
            out[0] = flags

    opens = call(open_, C.c_void_p, C.c_char_p, file, i32, to_i32)
    lib.sqlite3_vfs_find.restype = C.POINTER(Vfs)
    ours = Vfs.from_buffer_copy(lib.sqlite3_vfs_find(None).contents)
    ours.version, ours.file_bytes, ours.next, ours.name = 2, 8, None, b"disk"
    ours.open = C.cast(opens, C.c_void_p)
    assert lib.sqlite3_vfs_register(C.byref(ours), 0) == ok
    return lib, calls, methods, opens, ours


def find_library():
    """The SQLite that Python itself has loaded."""
    with open("/proc/self/maps") as maps:
        found = {line.split()[-1] for line in maps if "/libsqlite3" in line}
    if not found:
        sys.exit("the SQLite of this Python is no shared library")
    return found.pop()


disk = Disk(sys.stdin.readline().strip())
kept = vfs(disk)
db = sqlite3.connect("file:disk?vfs=disk", uri=True, isolation_level=None)
# The disk is one file: there is no room for a journal or for temporary files.
for pragma in "journal_mode=memory", "temp_store=memory", "synchronous=full":
    db.execute("pragma " + pragma)
print("ready", flush=True)
count = 0
while not disk.is_over:
    db.execute("begin")
    db.execute("insert into t values (?, ?)", (count, os.urandom(2000)))
    db.execute("delete from t where n = ?", (count - 2000,))
    db.execute("commit")
    count += 1
    print("committed", flush=True)
assert db.execute("pragma integrity_check").fetchone() == ("ok",)
rows = db.execute("select count(*) from t where n >= ? and n < ?", (count - 2000, count)).fetchone()[0]
lost = min(count, 2000) - rows
print("whole", count, lost, disk.bytes_written, disk.lost(), flush=True)
