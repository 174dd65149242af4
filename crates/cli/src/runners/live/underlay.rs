//! Hosts of one machine with a network between them: each a network namespace with a TUN device, whose packets a forwarder
//! carries to the others. What a host sends is shaped by the kernel (tbf) or behind it; what it gets queues and takes time
//! by [`Link`], the same object that the kernel's TCP is held against the model with. So the kernel's TCP sees rates and
//! delays, and so do TCP_INFO and KIST.

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

/// Packets that wait before each direction of a host's link: the simulator's default.
const QUEUE: usize = 1000;
const MTU: u64 = 1500;
const DEVICE: &str = "tide0";

/// Where packets wait for a host's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shaped {
    /// In the host's kernel (tbf). It lets each flow of TCP have but a few packets there ("small queues").
    Host,
    /// Behind the host, as before a modem, by a [`Link`]; what other hosts get does not queue again.
    Network,
}

/// What is run in a host's namespace.
type Job = Box<dyn FnOnce() + Send>;

/// A namespace; processes, threads and sockets begun by its jobs are in it, and processes end with it.
pub struct Host {
    /// Where others reach it.
    pub address: Ipv4Addr,
    jobs: mpsc::Sender<Job>,
}

impl Host {
    /// Runs something in the namespace, and waits for it.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let job = Box::new(move || drop(tell.send(job())));
        assert!(self.jobs.send(job).is_ok(), "the namespace's thread waits for jobs");
        told.recv().expect("a job does not panic")
    }
}

/// All hosts, and the forwarder between them.
pub struct Underlay {
    /// In the order that they were asked for.
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
    /// Hosts with links of these rates in both directions, `delay` between any two of them, and that algorithm in their
    /// kernel's TCP.
    ///
    /// # Errors
    /// What the system says; without root, `/dev/net/tun`, `ip` and `tc` there is none.
    pub fn new(rates: &[Rate], shaped: Shaped, delay: Span, congestion: &str) -> io::Result<Underlay> {
        let (mut hosts, mut ends) = (Vec::new(), Vec::new());
        for (number, rate) in (1..).zip(rates) {
            let address = Ipv4Addr::new(10, 77, 0, number);
            let (jobs, asked) = mpsc::channel::<Job>();
            let (tell, told) = mpsc::channel();
            let (rate, congestion) = (*rate, congestion.to_owned());
            thread::spawn(move || {
                let entered = enter(address, rate, shaped, &congestion);
                let is_in = entered.is_ok();
                if tell.send(entered).is_ok() && is_in {
                    asked.iter().for_each(|job| job());
                }
            });
            let tun = told.recv().map_err(io::Error::other)??;
            let link = Link::new(LinkRule::new(rate, delay, QUEUE), Seed::root(number.into()));
            ends.push(End { tun, shaped, link, under_way: VecDeque::new() });
            hosts.push(Host { address, jobs });
        }
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let forwarder = Some(thread::spawn(move || carry(ends, &stopped)));
        Ok(Underlay { hosts, forwarder, stop })
    }

    /// Ends it; how late the forwarder was, at the 99th percentile: a busy machine makes longer paths.
    ///
    /// # Errors
    /// What a device said.
    pub fn end(mut self) -> io::Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.forwarder.take().map_or(Ok(Duration::ZERO), |thread| thread.join().expect("the forwarder"))
    }
}

/// Runs one of the system's tools.
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

/// Moves this thread into a namespace of its own with a device whose sending is shaped.
fn enter(address: Ipv4Addr, rate: Rate, shaped: Shaped, congestion: &str) -> io::Result<Tun> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|cause| io::Error::other(format!("no network namespace: {cause}")))?;
    let name = Interface::new(DEVICE).map_err(io::Error::other)?;
    let mut tun =
        Tun::new_named(name).map_err(|cause| io::Error::other(format!("no TUN device: {cause}")))?;
    tun.set_nonblocking(true)?;
    std::fs::write("/proc/sys/net/ipv4/tcp_congestion_control", congestion).map_err(|cause| {
        io::Error::other(format!("TCP's congestion control cannot be {congestion}: {cause}"))
    })?;
    tool("ip link set lo up")?;
    tool(&format!("ip address add {address}/24 dev {DEVICE}"))?;
    tool(&format!("ip link set {DEVICE} mtu {MTU} txqueuelen 10000 up"))?;
    if shaped == Shaped::Host {
        let (burst, limit) = (2 * MTU, QUEUE as u64 * MTU);
        tool(&format!("tc qdisc add dev {DEVICE} root tbf rate {}bit burst {burst} limit {limit}", rate.0))?;
    }
    Ok(tun)
}

/// A host as the forwarder sees it: what is under way to it arrives in order.
struct End {
    tun: Tun,
    shaped: Shaped,
    /// Of what it gets, or of what it sends if that is shaped behind it.
    link: Link,
    under_way: VecDeque<(Time, Vec<u8>)>,
}

/// Asks for this thread to run before ordinary ones, and goes on if that is refused.
fn serve_first() {
    if let Ok(value) = ThreadPriorityValue::try_from(20u8) {
        let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
        let _ =
            set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Crossplatform(value), policy);
    }
}

/// Carries packets until told to stop.
fn carry(mut ends: Vec<End>, stop: &AtomicBool) -> io::Result<Duration> {
    serve_first();
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
                // Devices also say hello in IPv6.
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
