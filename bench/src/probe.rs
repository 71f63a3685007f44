//! The costs of a process, read from outside.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// CPU time of all threads of a process.
///
/// From `schedstat`, which counts nanoseconds; `stat` counts hundredths of a second. Threads that have ended are not
/// included, so both readings have to be made during a connection.
pub fn cpu_seconds(pid: u32) -> Result<f64> {
    let mut nanoseconds = 0;
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("the server is gone")? {
        // A thread may end between the listing and the reading.
        let Ok(schedstat) = fs::read_to_string(task?.path().join("schedstat")) else { continue };
        nanoseconds += schedstat.split_whitespace().next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// The resident set of a process (VmRSS).
pub fn resident_kib(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the server is gone")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// The memory of a process that is its own, and its part of what it shares (PSS).
pub fn proportional_kib(pid: u32) -> Result<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).context("the server is gone")?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:")).context("no Pss")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}

/// The memory (PSS, KiB) of a process and of those that it started, as the half of farbus without rights.
pub fn family_kib(pid: u32) -> Result<u64> {
    // A child may end meanwhile.
    let children = family(pid)?.into_iter().skip(1).filter_map(|child| proportional_kib(child).ok());
    Ok(proportional_kib(pid)? + children.sum::<u64>())
}

/// A process and those that it started.
pub fn family(pid: u32) -> Result<Vec<u32>> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).context("the server is gone")?;
    Ok([pid].into_iter().chain(children.split_whitespace().filter_map(|child| child.parse().ok())).collect())
}

/// The load of other processes on the machine.
pub struct ForeignLoad {
    busy_seconds: f64,
    ours_seconds: f64,
    at: std::time::Instant,
}

impl ForeignLoad {
    pub fn begin(servers: &[u32]) -> Result<Self> {
        Ok(Self {
            busy_seconds: machine_busy_seconds()?,
            ours_seconds: ours_seconds(servers)?,
            at: std::time::Instant::now(),
        })
    }

    /// The share of one CPU that neither this process nor `servers` used since the beginning; interrupts and time
    /// stolen by the hypervisor count as foreign.
    pub fn share(&self, servers: &[u32]) -> Result<f64> {
        let busy = machine_busy_seconds()? - self.busy_seconds;
        let ours = ours_seconds(servers)? - self.ours_seconds;
        Ok((busy - ours).max(0.0) / self.at.elapsed().as_secs_f64())
    }
}

fn ours_seconds(servers: &[u32]) -> Result<f64> {
    let mut seconds = cpu_seconds(std::process::id())?;
    for &server in servers {
        seconds += cpu_seconds(server)?;
    }
    Ok(seconds)
}

fn machine_busy_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    ensure!(fields.len() >= 8, "the first line of /proc/stat is not what it was");
    // user, nice, system, (idle, iowait), irq, softirq, steal; in hundredths of a second.
    Ok([0, 1, 2, 5, 6, 7].map(|at| fields[at]).iter().sum::<f64>() / 100.0)
}

/// The counters of a `farbus share` itself, for the open session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OwnCounters {
    pub urbs: u64,
    /// System calls that received, sent or waited.
    pub calls: u64,
}

impl OwnCounters {
    /// Asks `farbus status --json`.
    pub fn read(farbus: &Path, pid: u32) -> Result<Self> {
        let output = Command::new(farbus).args(["status", "--json"]).output()?;
        Self::parse(&output.stdout, pid).with_context(|| format!("farbus status tells nothing of process {pid}"))
    }

    fn parse(status: &[u8], pid: u32) -> Option<Self> {
        let status: serde_json::Value = serde_json::from_slice(status).ok()?;
        let process = status.as_array()?.iter().find(|process| process["pid"] == pid)?;
        let meters = process["devices"].as_array()?.iter().find_map(|device| device.get("meters"))?;
        let calls = ["receive_calls", "send_calls", "wait_calls"].map(|name| meters[name].as_u64());
        Some(Self { urbs: meters["urbs"].as_u64()?, calls: calls.into_iter().sum::<Option<u64>>()? })
    }
}

/// Counts the system calls of a process from outside.
pub enum SyscallCounter {
    /// A tracepoint, which costs the process well under a microsecond a call.
    Perf(Child, PathBuf),
    /// Stops the process at every call; the count is as good, but the process then batches differently.
    Strace(Child, PathBuf),
}

impl SyscallCounter {
    pub fn perf(pid: u32) -> Result<Self> {
        Self::perf_of(&[pid])
    }

    /// Counts those of several processes together.
    pub fn perf_of(pids: &[u32]) -> Result<Self> {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let report = report_path("perf");
        let child = Command::new("perf")
            .args(["stat", "-x,", "-e", "raw_syscalls:sys_enter", "-o"])
            .arg(&report)
            .args(["-p", &pids.join(",")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("perf is not installed")?;
        Self::Perf(child, report).settled()
    }

    pub fn strace(pid: u32) -> Result<Self> {
        let report = report_path("strace");
        let child = Command::new("strace")
            .args(["-f", "-c", "-U", "calls,name", "-o"])
            .arg(&report)
            .args(["-p", &pid.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("strace is not installed")?;
        Self::Strace(child, report).settled()
    }

    /// Waits until it has attached: neither tool reports that, and both take some tens of milliseconds.
    fn settled(mut self) -> Result<Self> {
        thread::sleep(Duration::from_millis(500));
        let (Self::Perf(child, _) | Self::Strace(child, _)) = &mut self;
        ensure!(
            child.try_wait()?.is_none(),
            "the tracer could not attach (root, or kernel.yama.ptrace_scope=0, is needed)"
        );
        Ok(self)
    }

    /// Detaches; returns the calls by name, where the tracer knows the names.
    pub fn finish(self) -> Result<SyscallTotals> {
        let (Self::Perf(child, report) | Self::Strace(child, report)) = &self;
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
        let by_perf = matches!(self, Self::Perf(..));
        let report = report.clone();
        let (Self::Perf(mut child, _) | Self::Strace(mut child, _)) = self;
        child.wait()?;
        let text = fs::read_to_string(&report).context("the tracer left no report")?;
        let _ = fs::remove_file(&report);
        if by_perf { parse_perf(&text) } else { parse_strace(&text) }
    }
}

fn report_path(tool: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farbus-bench-{}-{tool}", std::process::id()))
}

#[derive(Debug, PartialEq)]
pub struct SyscallTotals {
    pub total: u64,
    pub by_name: Vec<(String, u64)>,
}

/// `perf stat -x,`: the count is the first field of the line that names the event.
fn parse_perf(text: &str) -> Result<SyscallTotals> {
    let line = text.lines().find(|line| line.contains("sys_enter")).context("perf counted nothing")?;
    let count = line.split(',').next().unwrap_or_default();
    let total = count.parse().with_context(|| format!("perf says {count:?}"))?;
    Ok(SyscallTotals { total, by_name: Vec::new() })
}

/// `strace -c -U calls,name`: two columns between lines of dashes, then a total.
fn parse_strace(text: &str) -> Result<SyscallTotals> {
    let mut by_name = Vec::new();
    for line in text.lines() {
        let mut fields = line.split_whitespace();
        if let (Some(calls), Some(name), None) = (fields.next(), fields.next(), fields.next())
            && let Ok(calls) = calls.parse::<u64>()
            && name != "total"
        {
            by_name.push((name.to_owned(), calls));
        }
    }
    Ok(SyscallTotals { total: by_name.iter().map(|(_, calls)| calls).sum(), by_name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_used_cpu_and_memory() {
        let pid = std::process::id();
        assert!(cpu_seconds(pid).expect("readable") >= 0.0);
        let (resident, proportional) = (resident_kib(pid).expect("readable"), proportional_kib(pid).expect("readable"));
        assert!(resident > 100 && proportional > 100);
        assert!(cpu_seconds(u32::MAX).is_err());
    }

    #[test]
    fn the_count_is_read_from_what_perf_writes() {
        let text = "# started on Sat Nov 21\n\n4001234,,raw_syscalls:sys_enter,1000,100.00,,\n";
        assert_eq!(parse_perf(text).expect("a count").total, 4_001_234);
        assert!(parse_perf("<not counted>,,raw_syscalls:sys_enter,0,100.00,,").is_err());
    }

    #[test]
    fn own_counters_are_those_of_the_process_that_is_meant() {
        let status = br#"[{"pid": 1, "devices": [{"name": "disk"}]},
            {"pid": 2, "devices": [{"name": "zero", "meters":
                {"urbs": 10, "bytes_in": 5, "receive_calls": 6, "send_calls": 3, "wait_calls": 1}}]}]"#;
        assert_eq!(OwnCounters::parse(status, 2), Some(OwnCounters { urbs: 10, calls: 10 }));
        assert_eq!(OwnCounters::parse(status, 1), None);
        assert_eq!(OwnCounters::parse(b"", 2), None);
    }

    #[test]
    fn the_calls_are_read_from_what_strace_writes() {
        let text = "    calls syscall\n--------- ----------------\n    10001 recvfrom\n    10000 sendmsg\n--------- ----------------\n    20001 total\n";
        let calls = parse_strace(text).expect("calls");
        assert_eq!(calls.total, 20_001);
        assert_eq!(calls.by_name[1], ("sendmsg".to_owned(), 10_000));
    }
}
