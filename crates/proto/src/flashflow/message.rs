//! Messages between the roles: MEASUREMENT cells, parsed strictly.
//!
//! A body is a command byte, its fields in big-endian order, and zeros. Commands 0 to 3 are those of proposal
//! 316 between coordinator and relay. The proposal does not define how a coordinator talks to its measurers; 16
//! to 20 are ours.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::cell::{self, CELL, HEADER, MEASUREMENT, Token};
use crate::crypto::ntor::RelayPublic;

use crate::crypto::cert::Fingerprint;

/// Largest number of measurers of one measurement (proposal 316).
pub const MAX_MEASURERS: usize = 10;
/// The longest measurement in seconds (proposal 316).
pub const MAX_SECONDS: u16 = 600;

/// A message of the measurement protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Coordinator to relay: the parameters of a measurement.
    Params(Params),
    /// Relay to coordinator: ready for the measurers.
    ParamsOk,
    /// Relay to coordinator, every second: background bytes of that second.
    Background {
        /// Number of the second, from 1.
        second: u16,
        /// Background bytes sent in it.
        sent: u32,
        /// Background bytes received in it.
        received: u32,
    },
    /// Either way: the measurement is over.
    Failed(Reason),
    /// Coordinator to measurer: open circuits to this relay.
    Open(Open),
    /// Measurer to coordinator: circuits are open.
    Ready {
        /// Number of open circuits.
        opened: u16,
    },
    /// Coordinator to measurer: start to send.
    Go,
    /// Measurer to coordinator, every second since `Go`.
    Count {
        /// Number of the second, from 1.
        second: u16,
        /// Echoed bytes received in it, in whole cells.
        bytes: u64,
        /// Number of cells among them with a checked content.
        checked: u32,
    },
    /// Coordinator to measurer: close the circuits; the measurement ended.
    Stop,
}

/// Parameters of a measurement for the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Token of the measurement.
    pub token: Token,
    /// Length in seconds, from 1 to [`MAX_SECONDS`].
    pub seconds: u16,
    /// The share of background in percent, below 100. The relay takes the smaller of this and its own.
    pub background: u8,
    /// The measurers, 1 to [`MAX_MEASURERS`].
    pub measurers: Vec<MeasurerId>,
}

/// A measurer in the parameters for the relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurerId {
    /// Certificate of the measurer; circuits of other peers are refused.
    pub fingerprint: Fingerprint,
    /// Source address of its connections, if known, which exempts them from connection limits.
    pub address: Option<IpAddr>,
}

/// Order for a measurer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Token of the measurement.
    pub token: Token,
    /// Length in seconds.
    pub seconds: u16,
    /// Number of circuits, each on its own connection.
    pub sockets: u16,
    /// `a_i`: sending rate in bits per second.
    pub rate: u64,
    /// One echoed cell in this many is checked; 1 checks all.
    pub check_one_in: u32,
    /// Listening address of the relay.
    pub address: SocketAddr,
    /// The relay's TLS certificate.
    pub fingerprint: Fingerprint,
    /// The relay's identity and onion key.
    pub relay: RelayPublic,
}

macro_rules! reasons {
    ($($variant:ident = $code:literal, $name:literal, $text:literal;)*) => {
        /// Why a measurement failed. The numbers are those of the wire format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason {
            $(#[doc = $text] $variant = $code,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &[Reason] = &[$(Reason::$variant),*];

            /// A word for logs, records and metrics.
            pub fn name(self) -> &'static str {
                match self {
                    $(Reason::$variant => $name,)*
                }
            }

            /// The reason with that number; [`Reason::Other`] for unknown numbers.
            pub fn from_code(code: u8) -> Reason {
                Reason::ALL.iter().copied().find(|reason| *reason as u8 == code).unwrap_or(Reason::Other)
            }
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Reason::$variant => $text,)*
                })
            }
        }
    };
}

reasons! {
    Disabled = 1, "disabled", "the relay does not take part in measurements";
    NotAllowed = 2, "not-allowed", "the coordinator is not on the relay's list";
    TooOften = 3, "too-often", "the relay was measured as often as it allows in its period";
    Duration = 4, "duration", "the relay does not accept a measurement that long";
    Busy = 5, "busy", "it takes part in another measurement, or its rate is too low for this one";
    Circuits = 6, "circuits", "a measurer could not open half of its circuits; its log says why";
    WrongEcho = 7, "wrong-echo", "the relay returned a cell that it did not decrypt, or not in order";
    Timeout = 8, "timeout", "a phase of the measurement took too long";
    Lost = 9, "lost", "its connection broke or was refused";
    Stopped = 10, "stopped", "the operator stopped the measurement";
    Protocol = 11, "protocol", "a message was invalid, or not expected in this phase";
    Clock = 12, "clock", "reported seconds are shorter than the coordinator's";
    WrongKey = 13, "wrong-key", "the relay has another onion key; set `onion-key` to what `tidegate flashflow keygen` printed for the relay";
    Other = 255, "other", "another reason";
}

/// Reason why a cell is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageError {
    /// Not a MEASUREMENT cell on circuit 0.
    NotAMessage,
    /// An unknown command.
    UnknownCommand(u8),
    /// A field outside its range.
    Field(&'static str),
    /// Bytes other than zero after the last field.
    Trailing,
    /// Fields that do not fit into a cell.
    TooLong,
}

impl fmt::Display for MessageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageError::NotAMessage => f.write_str("not a MEASUREMENT cell on circuit 0"),
            MessageError::UnknownCommand(command) => write!(f, "unknown measurement command {command}"),
            MessageError::Field(field) => write!(f, "field {field} is out of range"),
            MessageError::Trailing => f.write_str("bytes follow the last field"),
            MessageError::TooLong => f.write_str("the message does not fit into a cell"),
        }
    }
}

impl std::error::Error for MessageError {}

/// Reads fields of a cell, one after another.
struct Reader<'a> {
    left: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], MessageError> {
        let (taken, left) = self.left.split_at_checked(n).ok_or(MessageError::TooLong)?;
        self.left = left;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        Ok(self.take(N)?.try_into().expect("as long as asked for"))
    }
    fn u8(&mut self) -> Result<u8, MessageError> {
        Ok(self.array::<1>()?[0])
    }
    fn u16(&mut self) -> Result<u16, MessageError> {
        Ok(u16::from_be_bytes(self.array()?))
    }
    fn u32(&mut self) -> Result<u32, MessageError> {
        Ok(u32::from_be_bytes(self.array()?))
    }
    fn u64(&mut self) -> Result<u64, MessageError> {
        Ok(u64::from_be_bytes(self.array()?))
    }
}

/// Link specifiers (tor-spec, EXTEND2), and one of ours.
const IPV4: u8 = 0;
const IPV6: u8 = 1;
const CERTIFICATE: u8 = 240;

/// Extensions of `Params`; those from 128 on are critical, others may be skipped.
const TOKEN: u8 = 128;
const BACKGROUND: u8 = 1;

/// A link specifier of an address, without the port that follows.
fn address_bytes(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => [&[IPV4, 6], &ip.octets()[..]].concat(),
        IpAddr::V6(ip) => [&[IPV6, 18], &ip.octets()[..]].concat(),
    }
}

impl Message {
    /// Formats the message as a cell.
    ///
    /// # Errors
    /// [`MessageError::TooLong`] or [`MessageError::Field`] for parameters that the format cannot express.
    pub fn to_cell(&self) -> Result<[u8; CELL], MessageError> {
        let body = match self {
            Message::Params(params) => params.body()?,
            Message::ParamsOk => vec![1],
            Message::Background { second, sent, received } => {
                [&[2][..], &second.to_be_bytes(), &sent.to_be_bytes(), &received.to_be_bytes()].concat()
            }
            Message::Failed(reason) => vec![3, *reason as u8],
            Message::Open(open) => open.body()?,
            Message::Ready { opened } => [&[17][..], &opened.to_be_bytes()].concat(),
            Message::Go => vec![18],
            Message::Count { second, bytes, checked } => {
                [&[19][..], &second.to_be_bytes(), &bytes.to_be_bytes(), &checked.to_be_bytes()].concat()
            }
            Message::Stop => vec![20],
        };
        let mut cell = cell::empty(0, MEASUREMENT);
        let space = cell[HEADER..].get_mut(..body.len()).ok_or(MessageError::TooLong)?;
        space.copy_from_slice(&body);
        Ok(cell)
    }

    /// Parses a cell.
    ///
    /// # Errors
    /// [`MessageError`] for everything that [`Message::to_cell`] does not write, except unknown extensions that
    /// are not critical.
    pub fn from_cell(cell: &[u8; CELL]) -> Result<Message, MessageError> {
        if cell[..HEADER] != cell::empty(0, MEASUREMENT)[..HEADER] {
            return Err(MessageError::NotAMessage);
        }
        let mut r = Reader { left: &cell[HEADER..] };
        let message = match r.u8()? {
            0 => Message::Params(Params::read(&mut r)?),
            1 => Message::ParamsOk,
            2 => Message::Background { second: r.u16()?, sent: r.u32()?, received: r.u32()? },
            3 => Message::Failed(Reason::from_code(r.u8()?)),
            16 => Message::Open(Open::read(&mut r)?),
            17 => Message::Ready { opened: r.u16()? },
            18 => Message::Go,
            19 => Message::Count { second: r.u16()?, bytes: r.u64()?, checked: r.u32()? },
            20 => Message::Stop,
            other => return Err(MessageError::UnknownCommand(other)),
        };
        if r.left.iter().any(|byte| *byte != 0) {
            return Err(MessageError::Trailing);
        }
        Ok(message)
    }
}

impl Params {
    fn check(&self) -> Result<(), MessageError> {
        if !(1..=MAX_SECONDS).contains(&self.seconds) {
            return Err(MessageError::Field("seconds"));
        }
        if !(1..=MAX_MEASURERS).contains(&self.measurers.len()) {
            return Err(MessageError::Field("measurers"));
        }
        if self.background >= 100 {
            return Err(MessageError::Field("background"));
        }
        Ok(())
    }

    fn body(&self) -> Result<Vec<u8>, MessageError> {
        self.check()?;
        let mut body = [&[0][..], &self.seconds.to_be_bytes(), &[self.measurers.len() as u8]].concat();
        for measurer in &self.measurers {
            body.extend([1 + u8::from(measurer.address.is_some()), CERTIFICATE, 32]);
            body.extend(measurer.fingerprint);
            // Link specifiers carry a port; a measurer's port is unknown before it connects.
            body.extend(measurer.address.iter().flat_map(|ip| [address_bytes(*ip), vec![0, 0]].concat()));
        }
        body.extend([2, TOKEN, 16]);
        body.extend(self.token);
        body.extend([BACKGROUND, 1, self.background]);
        Ok(body)
    }

    fn read(r: &mut Reader<'_>) -> Result<Params, MessageError> {
        let seconds = r.u16()?;
        let count = usize::from(r.u8()?);
        if count > MAX_MEASURERS {
            return Err(MessageError::Field("measurers"));
        }
        let measurers = (0..count).map(|_| MeasurerId::read(r)).collect::<Result<_, _>>()?;
        // 99 is the largest share: without the extension the relay's own share decides.
        let (mut token, mut background) = (None, 99);
        for _ in 0..r.u8()? {
            let (kind, length) = (r.u8()?, r.u8()?);
            let data = r.take(usize::from(length))?;
            match kind {
                TOKEN if token.is_none() => {
                    token = Some(data.try_into().map_err(|_| MessageError::Field("token"))?);
                }
                BACKGROUND => match data {
                    [percent] => background = *percent,
                    _ => return Err(MessageError::Field("background")),
                },
                128.. => return Err(MessageError::Field("extension")),
                _ => {}
            }
        }
        let token = token.ok_or(MessageError::Field("token"))?;
        let params = Params { token, seconds, background, measurers };
        params.check()?;
        Ok(params)
    }
}

impl MeasurerId {
    fn read(r: &mut Reader<'_>) -> Result<MeasurerId, MessageError> {
        let (mut fingerprint, mut address) = (None, None);
        for _ in 0..r.u8()? {
            let (kind, length) = (r.u8()?, r.u8()?);
            let data = r.take(usize::from(length))?;
            match (kind, data.len()) {
                (CERTIFICATE, 32) => fingerprint = Some(data.try_into().expect("32 bytes")),
                (IPV4, 6) => {
                    let octets: [u8; 4] = data[..4].try_into().expect("4 bytes");
                    address = Some(IpAddr::from(octets));
                }
                (IPV6, 18) => {
                    let octets: [u8; 16] = data[..16].try_into().expect("16 bytes");
                    address = Some(IpAddr::from(octets));
                }
                (CERTIFICATE | IPV4 | IPV6, _) => return Err(MessageError::Field("link specifier")),
                // As in EXTEND2, unknown kinds are skipped.
                _ => {}
            }
        }
        let fingerprint = fingerprint.ok_or(MessageError::Field("measurer"))?;
        Ok(MeasurerId { fingerprint, address })
    }
}

impl Open {
    fn body(&self) -> Result<Vec<u8>, MessageError> {
        self.check()?;
        Ok([
            &[16][..],
            &self.token,
            &self.seconds.to_be_bytes(),
            &self.sockets.to_be_bytes(),
            &self.rate.to_be_bytes(),
            &self.check_one_in.to_be_bytes(),
            &address_bytes(self.address.ip()),
            &self.address.port().to_be_bytes(),
            &self.fingerprint,
            &self.relay.identity,
            &self.relay.onion,
        ]
        .concat())
    }

    fn read(r: &mut Reader<'_>) -> Result<Open, MessageError> {
        let token = r.array()?;
        let (seconds, sockets, rate, check_one_in) = (r.u16()?, r.u16()?, r.u64()?, r.u32()?);
        let ip = match (r.u8()?, r.u8()?) {
            (IPV4, 6) => IpAddr::V4(Ipv4Addr::from(r.array::<4>()?)),
            (IPV6, 18) => IpAddr::V6(Ipv6Addr::from(r.array::<16>()?)),
            _ => return Err(MessageError::Field("address")),
        };
        let address = SocketAddr::new(ip, r.u16()?);
        let fingerprint = r.array()?;
        let relay = RelayPublic { identity: r.array()?, onion: r.array()? };
        let open = Open { token, seconds, sockets, rate, check_one_in, address, fingerprint, relay };
        open.check()?;
        Ok(open)
    }

    fn check(&self) -> Result<(), MessageError> {
        for (fine, field) in [
            ((1..=MAX_SECONDS).contains(&self.seconds), "seconds"),
            (self.sockets > 0, "sockets"),
            (self.rate > 0, "rate"),
            (self.check_one_in > 0, "check_one_in"),
            (self.address.port() > 0, "address"),
        ] {
            if !fine {
                return Err(MessageError::Field(field));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params(measurers: usize, v6: bool) -> Params {
        let address =
            Some(if v6 { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) });
        let measurers = (0..measurers).map(|i| MeasurerId { fingerprint: [i as u8; 32], address }).collect();
        Params { token: [5; 16], seconds: 30, background: 25, measurers }
    }

    fn open() -> Open {
        Open {
            token: [1; 16],
            seconds: 30,
            sockets: 54,
            rate: 738_000_000,
            check_one_in: 125,
            address: "[::1]:9001".parse().unwrap(),
            fingerprint: [2; 32],
            relay: RelayPublic { identity: [3; 20], onion: [4; 32] },
        }
    }

    #[test]
    fn every_message_reads_as_it_was_written() {
        let anonymous = MeasurerId { fingerprint: [8; 32], address: None };
        for message in [
            Message::Params(params(1, true)),
            Message::Params(params(10, false)),
            Message::Params(Params { measurers: vec![anonymous; 10], ..params(1, false) }),
            Message::ParamsOk,
            Message::Background { second: 30, sent: u32::MAX, received: 7 },
            Message::Failed(Reason::TooOften),
            Message::Open(open()),
            Message::Open(Open { address: "127.0.0.1:1".parse().unwrap(), ..open() }),
            Message::Ready { opened: 54 },
            Message::Go,
            Message::Count { second: 1, bytes: u64::MAX, checked: 3 },
            Message::Stop,
        ] {
            let cell = message.to_cell().unwrap();
            assert_eq!(Message::from_cell(&cell), Ok(message));
        }
        for reason in Reason::ALL.iter().copied() {
            let cell = Message::Failed(reason).to_cell().unwrap();
            assert_eq!(Message::from_cell(&cell), Ok(Message::Failed(reason)));
        }
    }

    #[test]
    fn values_out_of_range_are_neither_written_nor_read() {
        for bad in [
            Params { seconds: 0, ..params(1, false) },
            Params { seconds: 601, ..params(1, false) },
            Params { background: 100, ..params(1, false) },
            params(0, false),
            params(11, false),
        ] {
            assert!(matches!(Message::Params(bad).to_cell(), Err(MessageError::Field(_))));
        }
        assert_eq!(Message::Params(params(10, true)).to_cell(), Err(MessageError::TooLong));
        for bad in [
            Open { sockets: 0, ..open() },
            Open { rate: 0, ..open() },
            Open { check_one_in: 0, ..open() },
            Open { address: "127.0.0.1:0".parse().unwrap(), ..open() },
        ] {
            assert!(matches!(Message::Open(bad).to_cell(), Err(MessageError::Field(_))));
        }
        let mut cell = Message::Go.to_cell().unwrap();
        cell[HEADER] = 99;
        assert_eq!(Message::from_cell(&cell), Err(MessageError::UnknownCommand(99)));
        cell = Message::Go.to_cell().unwrap();
        cell[200] = 1;
        assert_eq!(Message::from_cell(&cell), Err(MessageError::Trailing));
        cell = Message::Go.to_cell().unwrap();
        cell[3] = 1;
        assert_eq!(Message::from_cell(&cell), Err(MessageError::NotAMessage));
    }

    #[test]
    fn extensions_are_skipped_unless_they_are_critical() {
        let mut cell = Message::Params(params(1, false)).to_cell().unwrap();
        // One measurer: 4 + 1 + 34 + 8 bytes, then the extensions.
        let count = HEADER + 4 + 1 + 34 + 8;
        let end = count + 1 + 18 + 3;
        assert_eq!(cell[count], 2);
        cell[count] = 3;
        cell[end..end + 4].copy_from_slice(&[77, 2, 9, 9]);
        assert_eq!(Message::from_cell(&cell), Ok(Message::Params(params(1, false))));
        cell[end] = 177;
        assert_eq!(Message::from_cell(&cell), Err(MessageError::Field("extension")));
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_what_is_read_can_be_written(
            command in 0u8..24, body in prop::collection::vec(any::<u8>(), CELL - HEADER - 1), zeros in 0usize..508
        ) {
            let mut cell = cell::empty(0, MEASUREMENT);
            cell[HEADER] = command;
            cell[HEADER + 1..].copy_from_slice(&body);
            cell[HEADER + 1 + zeros..].fill(0);
            if let Ok(message) = Message::from_cell(&cell) {
                let again = message.to_cell().unwrap();
                prop_assert_eq!(Message::from_cell(&again), Ok(message));
            }
        }

        #[test]
        fn one_changed_byte_never_panics(at in 0usize..CELL, to: u8) {
            for message in [Message::Params(params(9, false)), Message::Open(open())] {
                let mut cell = message.to_cell().unwrap();
                cell[at] = to;
                let _ = Message::from_cell(&cell);
            }
        }
    }
}
