//! Emulated hosts and the network between them.
//!
//! Each host is a network namespace with a TUN device. A forwarder thread carries packets between the devices. Sent packets
//! are shaped by the kernel (tbf) or by the forwarder; received packets queue and wait in a [`Link`] of the simulator. The
//! kernel's TCP, TCP_INFO and KIST therefore see real rates and delays.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags};
use nix::sched::{CloneFlags, unshare};
use nix::sys::time::TimeSpec;
use serde::Deserialize;
use tappers::{Interface, Tun};
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};
use thread_priority::{ThreadPriority, ThreadPriorityValue};
use tidegate_control::random::Seed;
use tidegate_control::units::{Rate, Span, Time};
use tidegate_net::clock;
use tidegate_sim::tcp::pair::{Link, LinkRule};

/// Default queue length of each link direction in packets: the simulator's.
pub const QUEUE: usize = 1000;
const MTU: u64 = 1500;
const DEVICE: &str = "tide0";

/// Place of the queue for a host's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shaped {
    /// In the host's kernel (tbf), which limits each TCP flow to a few packets (small queues).
    Host,
    /// Behind the host, as in a modem, by a [`Link`]; receivers do not queue again.
    Network,
}

/// Work to run in a host's namespace.
type Job = Box<dyn FnOnce() + Send>;

/// A network namespace. Clones share it. Processes, threads and sockets that its jobs create belong to it.
#[derive(Clone)]
pub struct Host {
    /// Address of the host.
    pub address: Ipv4Addr,
    jobs: mpsc::Sender<Job>,
}

impl Host {
    /// Runs a job in the namespace and waits for its result.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || drop(tell.send(job())));
        assert!(self.jobs.send(job).is_ok(), "the namespace's thread must be running");
        told.recv().expect("jobs do not panic")
    }
}

/// All hosts, and the forwarder between them.
pub struct Underlay {
    /// In the order of the rates.
    pub hosts: Vec<Host>,
    forwarder: Option<JoinHandle<io::Result<Duration>>>,
    stop: Arc<AtomicBool>,
}

impl Drop for Underlay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Underlay {
    /// Creates one host per rate, with queues of so many packets, `delay` between any two hosts, and this congestion
    /// control in the kernel's TCP.
    ///
    /// # Errors
    /// If the system refuses; this needs root, `/dev/net/tun`, `ip` and `tc`.
    pub fn new(
        rates: &[Rate],
        shaped: Shaped,
        queue: usize,
        delay: Span,
        congestion: &str,
    ) -> io::Result<Underlay> {
        let (mut hosts, mut ends) = (Vec::new(), Vec::new());
        for (number, rate) in (1..).zip(rates) {
            let address = Ipv4Addr::new(10, 77, 0, number);
            let (jobs, asked) = mpsc::channel::<Job>();
            let (tell, told) = mpsc::channel();
            let (rate, congestion) = (*rate, congestion.to_owned());
            thread::spawn(move || {
                let entered = enter(address, (rate, queue), shaped, &congestion);
                let is_in = entered.is_ok();
                if tell.send(entered).is_ok() && is_in {
                    asked.iter().for_each(|job| job());
                }
            });
            let tun = told.recv().map_err(io::Error::other)??;
            let link = Link::new(LinkRule::new(rate, delay, queue), Seed::root(number.into()));
            ends.push(End { tun, shaped, link, under_way: VecDeque::new() });
            hosts.push(Host { address, jobs });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let forwarder = Some(thread::spawn(move || carry(ends, &stopped)));
        Ok(Underlay { hosts, forwarder, stop })
    }

    /// Stops the forwarder and returns its 99th percentile of lateness, by which paths were longer.
    ///
    /// # Errors
    /// If a device failed.
    pub fn end(mut self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.forwarder
            .take()
            .map_or(Ok(Duration::ZERO), |thread| thread.join().expect("the forwarder does not panic"))
    }
}

/// Runs a system command such as `ip` or `tc`.
fn tool(line: &str) -> io::Result<()> {
    let mut words = line.split(' ');
    let failed = |cause: String| io::Error::other(format!("{line}: {cause}"));
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).output().map_err(|cause| failed(cause.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// Moves this thread into a new network namespace with a TUN device.
fn enter(
    address: Ipv4Addr,
    (rate, queue): (Rate, usize),
    shaped: Shaped,
    congestion: &str,
) -> io::Result<Tun> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|cause| io::Error::other(format!("cannot create a network namespace: {cause}")))?;
    let name = Interface::new(DEVICE).map_err(io::Error::other)?;
    let mut tun = Tun::new_named(name)
        .map_err(|cause| io::Error::other(format!("cannot create a TUN device: {cause}")))?;
    tun.set_nonblocking(true)?;
    set_congestion(congestion)?;
    tool("ip link set lo up")?;
    tool(&format!("ip address add {address}/24 dev {DEVICE}"))?;
    tool(&format!("ip link set {DEVICE} mtu {MTU} txqueuelen 10000 up"))?;
    if shaped == Shaped::Host {
        let (burst, limit) = (2 * MTU, queue as u64 * MTU);
        tool(&format!("tc qdisc add dev {DEVICE} root tbf rate {}bit burst {burst} limit {limit}", rate.0))?;
    }
    Ok(tun)
}

/// Sets the TCP congestion control of this thread's namespace.
fn set_congestion(congestion: &str) -> io::Result<()> {
    let file = "/proc/sys/net/ipv4/tcp_congestion_control";
    // The kernel refuses to set restricted algorithms here, but a new namespace inherits the first one's.
    if std::fs::read_to_string(file)?.trim() == congestion {
        return Ok(());
    }
    std::fs::write(file, congestion).map_err(|cause| {
        let cure = "add it to the sysctl net.ipv4.tcp_allowed_congestion_control";
        io::Error::other(format!("cannot set TCP congestion control {congestion}: {cause}; {cure}"))
    })
}

/// The forwarder's state of a host; packets to it are ordered by arrival time.
struct End {
    tun: Tun,
    shaped: Shaped,
    /// Link for received packets, or for sent packets if they are shaped behind the host.
    link: Link,
    under_way: VecDeque<(Time, Vec<u8>)>,
}

/// Requests real-time priority for this thread; without permission it keeps the normal one.
fn raise_priority() {
    if let Ok(value) = ThreadPriorityValue::try_from(20u8) {
        let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
        let _ =
            set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Crossplatform(value), policy);
    }
}

/// Forwards packets until `stop` is set; returns the 99th percentile of lateness.
fn carry(mut ends: Vec<End>, stop: &AtomicBool) -> io::Result<Duration> {
    raise_priority();
    let (mut lateness, mut buffer) = (Vec::new(), vec![0; 2048]);
    while !stop.load(Ordering::Relaxed) {
        let mut next = Time::NEVER;
        for End { tun, under_way, .. } in &mut ends {
            while let Some((due, packet)) = under_way.front() {
                let now = clock::now();
                if *due > now {
                    next = next.min(*due);
                    break;
                }
                lateness.push(now.since(*due).0);
                tun.send(packet)?;
                under_way.pop_front();
            }
        }
        let wait = Duration::from_nanos(next.since(clock::now()).0.min(50_000_000));
        let mut polled: Vec<PollFd<'_>> =
            ends.iter().map(|end| PollFd::new(end.tun.as_fd(), PollFlags::POLLIN)).collect();
        match nix::poll::ppoll(&mut polled, Some(TimeSpec::from_duration(wait)), None) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(cause) => return Err(cause.into()),
        }
        for from in 0..ends.len() {
            loop {
                let length = match ends[from].tun.recv(&mut buffer) {
                    Ok(length) => length,
                    Err(cause) if cause.kind() == ErrorKind::WouldBlock => break,
                    Err(cause) => return Err(cause),
                };
                let packet = &buffer[..length];
                // Ignore IPv6: devices send router solicitations.
                let to = packet.get(19).filter(|_| packet[0] >> 4 == 4).map(|last| usize::from(*last));
                let to = to.and_then(|number| number.checked_sub(1)).filter(|to| *to < ends.len());
                let Some(to) = to else { continue };
                let link = match ends[from].shaped {
                    Shaped::Host => to,
                    Shaped::Network => from,
                };
                if let [Some(due), _] = ends[link].link.carry(clock::now(), length as u64) {
                    let under_way = &mut ends[to].under_way;
                    let at = under_way.partition_point(|(before, _)| *before <= due);
                    under_way.insert(at, (due, packet.to_vec()));
                }
            }
        }
    }
    lateness.sort_unstable();
    Ok(Duration::from_nanos(lateness.get(lateness.len() * 99 / 100).copied().unwrap_or(0)))
}
