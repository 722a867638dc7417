//! Reads the monotonic clock, and sets the clocks of a child process through a small preloaded library.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// Returns the time of the monotonic clock in ns. All processes of this machine share this clock.
#[must_use]
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds * 1_000_000_000 + nanos
}

/// Computes until the calling thread has used this much processor time. Returns how many times longer that took than
/// the processor time.
pub(crate) fn slowdown(computing: Duration) -> f64 {
    let used = || {
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(used.tv_sec.unsigned_abs(), used.tv_nsec as u32)
    };
    let (begun, before) = (Instant::now(), used());
    while used() - before < computing {}
    begun.elapsed().div_duration_f64(used() - before)
}

/// The C source of the preloaded library. The library reads two numbers from a file: it adds the first number, in µs,
/// to the time of day, and subtracts the second number, in ns, from the monotonic clock.
const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static const volatile long long *set(void) {
    static const volatile long long *numbers;
    static const long long none[2];
    if (numbers) return numbers;
    const char *path = getenv("CLOCKS_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    void *mapped = file < 0 ? MAP_FAILED : mmap(0, sizeof none, PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    return numbers = mapped == MAP_FAILED ? none : mapped;
}
int gettimeofday(struct timeval *tv, void *tz) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int failed = real(tv, tz);
    if (!failed && tv) {
        long long micros = tv->tv_sec * 1000000LL + tv->tv_usec + set()[0];
        tv->tv_sec = micros / 1000000;
        tv->tv_usec = micros % 1000000;
    }
    return failed;
}
int clock_gettime(clockid_t clock, struct timespec *ts) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, ts);
    if (!failed && clock == CLOCK_MONOTONIC) {
        long long nanos = ts->tv_sec * 1000000000LL + ts->tv_nsec - set()[1];
        ts->tv_sec = nanos / 1000000000;
        ts->tv_nsec = nanos % 1000000000;
    }
    return failed;
}
"#;

/// The clocks of one child process, which a test can set only on Linux.
#[derive(Debug)]
pub struct Clocks {
    file: PathBuf,
    library: PathBuf,
}

impl Clocks {
    /// Creates clocks that show the correct time, and writes their files into this folder.
    ///
    /// # Panics
    /// If there is no C compiler, or the folder cannot be written.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let clocks = Self {
            file: folder.join("clocks"),
            library: folder.join("clocks.so"),
        };
        clocks.set(0, 0);
        let source = folder.join("clocks.c");
        fs::write(&source, LIBRARY).expect("the library's source can be written");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&clocks.library)
            .arg(source)
            .arg("-ldl")
            .status()
            .expect("a C compiler is installed, because Rust uses its linker");
        assert!(compiled.success(), "the library does not compile");
        clocks
    }

    /// Makes the process that `command` starts use these clocks.
    pub fn wind(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("CLOCKS_FILE", &self.file);
    }

    /// Sets the time of day this many seconds ahead of the system's time of day. A negative number sets the time of day
    /// back. The monotonic clock shows the correct time afterwards.
    ///
    /// # Panics
    /// If the folder cannot be written.
    pub fn set_ahead(&self, seconds: i64) {
        self.set(seconds * 1_000_000, 0);
    }

    /// Sets the monotonic clock back by `behind`, as if the machine had been suspended for that time. The time of day
    /// is correct afterwards.
    ///
    /// # Panics
    /// If the folder cannot be written, or `behind` is longer than 292 years.
    pub fn set_monotonic_behind(&self, behind: Duration) {
        let nanos = i64::try_from(behind.as_nanos()).expect("the time is shorter than 292 years");
        self.set(0, nanos);
    }

    fn set(&self, ahead_micros: i64, behind_nanos: i64) {
        // The file is not truncated, because the process may have mapped it.
        let mut numbers = ahead_micros.to_ne_bytes().to_vec();
        numbers.extend(behind_nanos.to_ne_bytes());
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create(true).truncate(false);
        let mut file = file
            .open(&self.file)
            .expect("the clocks' file can be opened");
        std::io::Write::write_all(&mut file, &numbers).expect("the clocks can be set");
    }
}
