//! What the operating system knows of a TCP connection (TCP_INFO, SIOCOUTQNSD), and of processes: processor time and
//! memory; and calendar time.
//!
//! This crate is the only one with unsafe code, since most of these queries have no safe interface.

mod process;

pub use process::{cpu_s_of, memory_of, peak_memory, process_cpu_s, thread_cpu_s, unix_s};

/// The kernel's state of a TCP sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Congestion window, segments.
    pub window: u32,
    /// Segments in flight: sent and not acknowledged.
    pub unacknowledged: u32,
    /// Payload bytes per full segment (MSS).
    pub segment_bytes: u32,
    /// Bytes written and not sent.
    pub unsent_bytes: u64,
    /// Smoothed round-trip time (RTT), microseconds.
    pub rtt_us: u32,
}

#[cfg(target_os = "linux")]
pub use linux::sender;

/// Queries the kernel about a connection. Not supported on this system.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn sender(_: impl Sized) -> std::io::Result<Sender> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::io;
    use std::mem::{MaybeUninit, size_of};
    use std::os::fd::{AsFd, AsRawFd as _};

    use super::Sender;

    /// Unsent bytes in a socket's send queue (`linux/sockios.h`).
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;

    /// Queries the kernel about a connection.
    ///
    /// # Errors
    /// If the socket is not TCP.
    pub fn sender(socket: impl AsFd) -> io::Result<Sender> {
        let descriptor = socket.as_fd().as_raw_fd();
        // An older kernel writes less than `info`; the rest stays zero.
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        #[expect(
            unsafe_code,
            reason = "the kernel writes at most `length` bytes, which is the size of what `info` points to"
        )]
        let status = unsafe {
            libc::getsockopt(
                descriptor,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        #[expect(
            unsafe_code,
            reason = "it was zeroed, and integers of any value are valid, however much the kernel wrote"
        )]
        let info = unsafe { info.assume_init() };
        let mut unsent: libc::c_int = 0;
        #[expect(unsafe_code, reason = "this request writes one int, which `unsent` is")]
        let status = unsafe { libc::ioctl(descriptor, SIOCOUTQNSD, &raw mut unsent) };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Sender {
            window: info.tcpi_snd_cwnd,
            unacknowledged: info.tcpi_unacked,
            segment_bytes: info.tcpi_snd_mss,
            unsent_bytes: u64::try_from(unsent).unwrap_or(0),
            rtt_us: info.tcpi_rtt,
        })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use super::*;

    /// The two ends of a TCP connection on loopback.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn a_new_connection_has_a_window_and_no_unsent_data() {
        let (ours, _theirs) = pair();
        let state = sender(&ours).unwrap();
        assert!(state.window >= 1 && state.segment_bytes >= 536, "{state:?}");
        assert_eq!((state.unacknowledged, state.unsent_bytes), (0, 0));
    }

    #[test]
    fn unread_data_stays_unsent() {
        let (mut ours, mut theirs) = pair();
        ours.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(count) = ours.write(&[0; 65_536]) {
            written += count as u64;
        }
        let full = sender(&ours).unwrap();
        assert!(full.unsent_bytes > 0 && full.unsent_bytes <= written, "{full:?} of {written}");
        let mut buffer = vec![0; 1 << 20];
        let mut read = 0;
        while read < written {
            read += theirs.read(&mut buffer).unwrap() as u64;
        }
        assert_eq!(sender(&ours).unwrap().unsent_bytes, 0);
    }

    #[test]
    fn a_socket_that_is_not_tcp_is_an_error() {
        assert!(sender(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
        assert!(sender(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
