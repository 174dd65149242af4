//! What the kernel says of a TCP connection: its congestion window, what is in flight, and what waits in the send queue.
//! Kept apart from everything else because no safe interface to TCP_INFO and SIOCOUTQNSD exists; each unsafe block says
//! why it holds.

/// A TCP connection as its sender's kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender {
    /// Congestion window in segments.
    pub window: u32,
    /// Segments sent and not acknowledged.
    pub unacknowledged: u32,
    /// Payload bytes of a full segment.
    pub segment_bytes: u32,
    /// Bytes written and never sent.
    pub unsent_bytes: u64,
    /// Smoothed round-trip time in microseconds.
    pub rtt_us: u32,
}

#[cfg(target_os = "linux")]
pub use linux::sender;

/// What the kernel says of a connection; here it cannot be asked.
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

    /// Bytes of a socket's send queue that were never sent (`linux/sockios.h`).
    const SIOCOUTQNSD: libc::Ioctl = 0x894b;

    /// What the kernel says of a connection.
    ///
    /// # Errors
    /// If it is none of TCP.
    pub fn sender(socket: impl AsFd) -> io::Result<Sender> {
        let descriptor = socket.as_fd().as_raw_fd();
        let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        #[expect(
            unsafe_code,
            reason = "the kernel writes at most `length` bytes, which is the size of what `info` points to"
        )]
        let said = unsafe {
            libc::getsockopt(
                descriptor,
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if said != 0 {
            return Err(io::Error::last_os_error());
        }
        #[expect(
            unsafe_code,
            reason = "it was zeroed, and integers of any value are valid, however much the kernel wrote"
        )]
        let info = unsafe { info.assume_init() };
        let mut unsent: libc::c_int = 0;
        #[expect(unsafe_code, reason = "this request writes one int, which `unsent` is")]
        let said = unsafe { libc::ioctl(descriptor, SIOCOUTQNSD, &raw mut unsent) };
        if said != 0 {
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

    /// The two ends of a connection on loopback.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    #[test]
    fn a_fresh_connection_has_a_window_and_nothing_waiting() {
        let (ours, _theirs) = pair();
        let state = sender(&ours).unwrap();
        assert!(state.window >= 1 && state.segment_bytes >= 536, "{state:?}");
        assert_eq!((state.unacknowledged, state.unsent_bytes), (0, 0));
    }

    #[test]
    fn what_the_other_side_does_not_read_waits_unsent_until_it_does() {
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
    fn what_is_no_tcp_is_an_error() {
        assert!(sender(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
        assert!(sender(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
