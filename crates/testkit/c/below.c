/* What lies below a program, held by a test: the disk under one folder, and the clocks.
 *
 * Loaded into the real binary with LD_PRELOAD. It stands between the program and the C library and
 *  - answers reads, writes, syncs and changes of names under BELOW_FOLDER with an error, while the test says so;
 *  - shifts the wall clock and lets both clocks run faster or slower;
 *  - with BELOW_TRACE: writes down every write, cut, sync and change of a name under BELOW_FOLDER, in the order
 *    in which they happened. From such a trace the test makes what a disk may hold after a power cut.
 *
 * The test talks to it through BELOW_CONTROL, a file of 64-bit words that both have in memory (enum word).
 * The Rust side of all this is crates/testkit/src/below.rs; the two know the same words and the same records.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum word {
    WRITE_ERROR,    /* errno of every write; 0: none */
    SYNC_ERROR,     /* of every fsync and fdatasync, after the data went to the system */
    READ_ERROR,     /* of every read */
    CHANGE_ERROR,   /* of opening to write, of cutting, making, renaming and removing */
    NO_ROOM,        /* 1: a write that would make a file longer gets ENOSPC, after half of it was taken */
    ONLY_DATABASE,  /* 1: all this strikes only files whose name ends in .db, and spares the log beside them */
    CLOCK_CHANGED,  /* raised by the test after it has changed one of the next three */
    WALL_OFFSET,    /* nanoseconds added to the wall clock */
    WALL_RATE,      /* thousandths of true speed */
    MONOTONIC_RATE, /* the same for the monotonic clock */
    FAULTS,         /* counted here: errors that were given */
    READINGS,       /* counted here: how often a clock was read */
    WORDS
};

/* The kinds of records: one byte, then file, offset and length, then so many bytes. */
enum kind { WRITE = 'w', CUT = 'c', SYNC = 's', MADE = 'm', FOLDER = 'f', RENAMED = 'r', REMOVED = 'u' };

static volatile int64_t *control;
static char folder[PATH_MAX];
static size_t folder_length;
static int trace = -1;
/* Held over an operation and its record: the order in the trace is the order on the disk. */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

#define FDS 65536
enum { OTHER = 1, DATABASE = 2 };
static volatile unsigned char ours[FDS]; /* 0: none of ours */


__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("BELOW_CONTROL"), *under = getenv("BELOW_FOLDER"), *to = getenv("BELOW_TRACE");
    if (!name || !under) return;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) { perror(name); _exit(97); }
    void *words = mmap(NULL, WORDS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (words == MAP_FAILED) { perror(name); _exit(97); }
    snprintf(folder, sizeof folder, "%s", under);
    folder_length = strlen(folder);
    if (to) trace = (int)syscall(SYS_openat, AT_FDCWD, to, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (to && trace < 0) { perror(to); _exit(97); }
    control = words;
}

static int under(const char *path) {
    return control && path && !strncmp(path, folder, folder_length)
        && (path[folder_length] == '/' || !path[folder_length]);
}

static int is_ours(int fd) { return control && fd >= 0 && fd < FDS && ours[fd]; }

static int kind_of(const char *path) {
    size_t length = strlen(path);
    return length > 3 && !strcmp(path + length - 3, ".db") ? DATABASE : OTHER;
}

/* Whether the test wants this to fail; errno says how. */
static int fails(int kind, enum word word) {
    int64_t wanted = control[word];
    if (!wanted || (control[ONLY_DATABASE] && kind != DATABASE)) return 0;
    __atomic_add_fetch(&control[FAULTS], 1, __ATOMIC_SEQ_CST);
    errno = (int)wanted;
    return 1;
}

static void record(enum kind kind, uint64_t file, uint64_t offset, const void *bytes, uint32_t length) {
    if (trace < 0) return;
    unsigned char head[21];
    head[0] = (unsigned char)kind;
    memcpy(head + 1, &file, 8);
    memcpy(head + 9, &offset, 8);
    memcpy(head + 17, &length, 4);
    struct iovec parts[2] = {{head, sizeof head}, {(void *)bytes, length}};
    int saved = errno;
    if (syscall(SYS_writev, trace, parts, 2) != (long)(sizeof head + length)) { perror("trace"); _exit(97); }
    errno = saved;
}

static uint64_t file_of(int fd) {
    struct stat known;
    return fstat(fd, &known) ? 0 : (uint64_t)known.st_ino;
}

#define LOCKED(expression) ({ pthread_mutex_lock(&order); __typeof__(expression) done = (expression); int e = errno; \
    pthread_mutex_unlock(&order); errno = e; done; })

static int open_here(const char *path, int flags, mode_t mode) {
    int changes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
    if (changes && fails(kind_of(path), CHANGE_ERROR)) return -1;
    int there = access(path, F_OK) == 0;
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
    if (fd < 0 || fd >= FDS) return fd;
    ours[fd] = (unsigned char)kind_of(path);
    if (!there) record(MADE, file_of(fd), 0, path, (uint32_t)strlen(path));
    else if (flags & O_TRUNC) record(CUT, file_of(fd), 0, NULL, 0);
    return fd;
}

static int open_any(int at, const char *path, int flags, mode_t mode) {
    if (at == AT_FDCWD && under(path)) return LOCKED(open_here(path, flags, mode));
    return (int)syscall(SYS_openat, at, path, flags, mode);
}

#define MODE(last) mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, last); \
    mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_any(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_any(at, path, flags, mode); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) ours[fd] = 0;
    return (int)syscall(SYS_close, fd);
}

static ssize_t write_here(int fd, const void *bytes, size_t count, off64_t at) {
    if (fails(ours[fd], WRITE_ERROR)) return -1;
    struct stat known;
    if (control[NO_ROOM] && !fstat(fd, &known)) {
        off64_t from = at >= 0 ? at : lseek(fd, 0, SEEK_CUR);
        if (from + (off64_t)count > known.st_size) {
            __atomic_add_fetch(&control[FAULTS], 1, __ATOMIC_SEQ_CST);
            if (count < 2) { errno = ENOSPC; return -1; }
            /* as a disk does that fills up in the middle: the first half is taken, the next write gets nothing */
            count /= 2;
            if (from + (off64_t)count > known.st_size) { errno = ENOSPC; return -1; }
        }
    }
    ssize_t done = at >= 0 ? syscall(SYS_pwrite64, fd, bytes, count, at) : syscall(SYS_write, fd, bytes, count);
    if (done <= 0) return done;
    off64_t from = at >= 0 ? at : lseek(fd, 0, SEEK_CUR) - done;
    record(WRITE, file_of(fd), (uint64_t)from, bytes, (uint32_t)done);
    return done;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    return is_ours(fd) ? LOCKED(write_here(fd, bytes, count, -1)) : syscall(SYS_write, fd, bytes, count);
}
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return is_ours(fd) ? LOCKED(write_here(fd, bytes, count, at)) : syscall(SYS_pwrite64, fd, bytes, count, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) { return pwrite(fd, bytes, count, at); }

ssize_t read(int fd, void *bytes, size_t count) {
    return is_ours(fd) && fails(ours[fd], READ_ERROR) ? -1 : syscall(SYS_read, fd, bytes, count);
}
ssize_t pread(int fd, void *bytes, size_t count, off_t at) {
    return is_ours(fd) && fails(ours[fd], READ_ERROR) ? -1 : syscall(SYS_pread64, fd, bytes, count, at);
}
ssize_t pread64(int fd, void *bytes, size_t count, off64_t at) { return pread(fd, bytes, count, at); }

static int cut_here(int fd, off_t length) {
    if (fails(ours[fd], CHANGE_ERROR)) return -1;
    int done = (int)syscall(SYS_ftruncate, fd, length);
    if (!done) record(CUT, file_of(fd), (uint64_t)length, NULL, 0);
    return done;
}
int ftruncate(int fd, off_t length) {
    return is_ours(fd) ? LOCKED(cut_here(fd, length)) : (int)syscall(SYS_ftruncate, fd, length);
}
int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

/* A sync that fails leaves what was written in the system, where it may or may not reach the disk. */
static int sync_here(int fd, long number) {
    if (fails(ours[fd], SYNC_ERROR)) return -1;
    /* a trace is not about this machine's disk: its syncs need not be waited for */
    int done = trace < 0 ? (int)syscall(number, fd) : 0;
    if (!done) record(SYNC, file_of(fd), 0, NULL, 0);
    return done;
}
int fsync(int fd) { return is_ours(fd) ? LOCKED(sync_here(fd, SYS_fsync)) : (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return is_ours(fd) ? LOCKED(sync_here(fd, SYS_fdatasync)) : (int)syscall(SYS_fdatasync, fd); }

static int rename_here(const char *from, const char *to) {
    if (fails(kind_of(to), CHANGE_ERROR)) return -1;
    char both[2 * PATH_MAX];
    int length = snprintf(both, sizeof both, "%s%c%s", from, 0, to);
    int done = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (!done) record(RENAMED, 0, 0, both, (uint32_t)length);
    return done;
}
int rename(const char *from, const char *to) {
    if (under(from) || under(to)) return LOCKED(rename_here(from, to));
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static int unlink_here(const char *path) {
    if (fails(kind_of(path), CHANGE_ERROR)) return -1;
    int done = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!done) record(REMOVED, 0, 0, path, (uint32_t)strlen(path));
    return done;
}
int unlink(const char *path) {
    return under(path) ? LOCKED(unlink_here(path)) : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

static int mkdir_here(const char *path, mode_t mode) {
    if (fails(kind_of(path), CHANGE_ERROR)) return -1;
    int done = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
    struct stat known;
    if (!done && !stat(path, &known)) record(FOLDER, known.st_ino, 0, path, (uint32_t)strlen(path));
    return done;
}
int mkdir(const char *path, mode_t mode) {
    return under(path) ? LOCKED(mkdir_here(path, mode)) : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

/* One clock: a true moment and what was shown then; from there it runs at its rate. */
struct clock { int64_t truth, shown, rate; };
static struct clock clocks[2]; /* wall, monotonic */
static int64_t clocks_as_of = -1;
static pthread_mutex_t clocks_held = PTHREAD_MUTEX_INITIALIZER;

static int64_t shown(const struct clock *clock, int64_t truth) {
    int64_t passed = truth - clock->truth;
    return clock->shown + passed / 1000 * clock->rate + passed % 1000 * clock->rate / 1000;
}

static int64_t true_time(clockid_t which) {
    struct timespec now;
    syscall(SYS_clock_gettime, which, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t rate_of(enum word word) { return control[word] ? control[word] : 1000; }

/* After a change of rate a clock goes on from where it is: only the offset makes the wall clock jump. */
static int64_t time_of(clockid_t which) {
    pthread_mutex_lock(&clocks_held);
    int64_t wall = true_time(CLOCK_REALTIME), monotonic = true_time(CLOCK_MONOTONIC), as_of = control[CLOCK_CHANGED];
    if (clocks_as_of < 0) {
        clocks[0] = (struct clock){wall, wall, 1000};
        clocks[1] = (struct clock){monotonic, monotonic, 1000};
    }
    if (as_of != clocks_as_of) {
        clocks[0] = (struct clock){wall, shown(&clocks[0], wall), rate_of(WALL_RATE)};
        clocks[1] = (struct clock){monotonic, shown(&clocks[1], monotonic), rate_of(MONOTONIC_RATE)};
        clocks_as_of = as_of;
    }
    int64_t now = which == CLOCK_REALTIME ? shown(&clocks[0], wall) + control[WALL_OFFSET] : shown(&clocks[1], monotonic);
    pthread_mutex_unlock(&clocks_held);
    __atomic_add_fetch(&control[READINGS], 1, __ATOMIC_RELAXED);
    return now;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    if (!control || (which != CLOCK_REALTIME && which != CLOCK_MONOTONIC))
        return (int)syscall(SYS_clock_gettime, which, now);
    int64_t nanos = time_of(which);
    now->tv_sec = nanos / 1000000000;
    now->tv_nsec = nanos % 1000000000;
    return 0;
}
