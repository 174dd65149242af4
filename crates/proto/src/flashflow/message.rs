//! What the roles say to each other: MEASUREMENT cells, strict in both directions. A body is a command
//! byte, its fields in big-endian order, and zeros.
//!
//! Commands 0 to 3 are proposal 316's between coordinator and relay. The proposal leaves open how a
//! coordinator talks to its measurers; 16 to 20 are ours.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::cell::{self, CELL, HEADER, MEASUREMENT, Token};
pub use super::fields::MessageError;
use super::fields::{Reader, Writer};
pub use super::reason::Reason;
use crate::crypto::ntor::RelayPublic;

pub use crate::crypto::cert::Fingerprint;

/// Measurers that one measurement can have (proposal 316).
pub const MAX_MEASURERS: usize = 10;
/// The longest measurement in seconds (proposal 316).
pub const MAX_SECONDS: u16 = 600;

/// A message of the measurement protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Coordinator to relay: measure you this way.
    Params(Params),
    /// Relay to coordinator: ready for the measurers.
    ParamsOk,
    /// Relay to coordinator, each second: background bytes since the last.
    Background {
        /// 1, 2, ...
        second: u16,
        /// Background bytes sent in it.
        sent: u32,
        /// Background bytes received in it.
        received: u32,
    },
    /// Either way: the measurement is over, and why.
    Failed(Reason),
    /// Coordinator to measurer: open circuits to this relay.
    Open(Open),
    /// Measurer to coordinator: so many circuits are open.
    Ready {
        /// Circuits open.
        opened: u16,
    },
    /// Coordinator to measurer: send.
    Go,
    /// Measurer to coordinator, each second since `Go`.
    Count {
        /// 1, 2, ...
        second: u16,
        /// Echoed bytes received in it, whole cells.
        bytes: u64,
        /// Cells among them whose content was checked.
        checked: u32,
    },
    /// Coordinator to measurer: close the circuits; the measurement ended.
    Stop,
}

/// How a relay is to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Names the measurement.
    pub token: Token,
    /// How long, in seconds, from 1 to [`MAX_SECONDS`].
    pub seconds: u16,
    /// The share of background in percent, below 100. The relay takes the smaller of this and its own.
    pub background: u8,
    /// Who will measure, 1 to [`MAX_MEASURERS`].
    pub measurers: Vec<MeasurerId>,
}

/// A measurer, as the relay is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasurerId {
    /// Whose circuits to accept.
    pub fingerprint: Fingerprint,
    /// Where its connections come from, if known: exempt from limits on connections meanwhile.
    pub address: Option<IpAddr>,
}

/// What a measurer is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Names the measurement.
    pub token: Token,
    /// How long it will send, in seconds.
    pub seconds: u16,
    /// Circuits to open, each on a connection of its own.
    pub sockets: u16,
    /// `a_i`: bits per second to send at most.
    pub rate: u64,
    /// One echoed cell in this many is checked; 1 checks all.
    pub check_one_in: u32,
    /// Where the relay listens.
    pub address: SocketAddr,
    /// The relay's TLS certificate.
    pub fingerprint: Fingerprint,
    /// The relay's identity and onion key.
    pub relay: RelayPublic,
}

/// Link specifiers (tor-spec, EXTEND2), and one of ours.
const IPV4: u8 = 0;
const IPV6: u8 = 1;
const CERTIFICATE: u8 = 240;

/// Extensions of `Params`; a reader must know those from 128 on and may skip the others.
const TOKEN: u8 = 128;
const BACKGROUND: u8 = 1;

impl Message {
    /// The message as a cell.
    ///
    /// # Errors
    /// [`MessageError::TooLong`] or [`MessageError::Field`] for parameters that cannot be said.
    pub fn to_cell(&self) -> Result<[u8; CELL], MessageError> {
        let mut w = Writer { cell: cell::empty(0, MEASUREMENT), at: HEADER };
        match self {
            Message::Params(params) => params.write(&mut w)?,
            Message::ParamsOk => w.put(&[1])?,
            Message::Background { second, sent, received } => {
                w.put(&[2])?;
                w.put(&second.to_be_bytes())?;
                w.put(&sent.to_be_bytes())?;
                w.put(&received.to_be_bytes())?;
            }
            Message::Failed(reason) => w.put(&[3, *reason as u8])?,
            Message::Open(open) => open.write(&mut w)?,
            Message::Ready { opened } => {
                w.put(&[17])?;
                w.put(&opened.to_be_bytes())?;
            }
            Message::Go => w.put(&[18])?,
            Message::Count { second, bytes, checked } => {
                w.put(&[19])?;
                w.put(&second.to_be_bytes())?;
                w.put(&bytes.to_be_bytes())?;
                w.put(&checked.to_be_bytes())?;
            }
            Message::Stop => w.put(&[20])?,
        }
        Ok(w.cell)
    }

    /// Reads a cell.
    ///
    /// # Errors
    /// [`MessageError`] for anything that [`Message::to_cell`] does not write, but for extensions that a
    /// reader may skip.
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

    fn write(&self, w: &mut Writer) -> Result<(), MessageError> {
        self.check()?;
        w.put(&[0])?;
        w.put(&self.seconds.to_be_bytes())?;
        w.put(&[self.measurers.len() as u8])?;
        for measurer in &self.measurers {
            w.put(&[1 + u8::from(measurer.address.is_some()), CERTIFICATE, 32])?;
            w.put(&measurer.fingerprint)?;
            // Link specifiers carry a port; a measurer's is not known before it connects.
            match measurer.address {
                Some(IpAddr::V4(ip)) => w.put(&[&[IPV4, 6], &ip.octets()[..], &[0, 0]].concat())?,
                Some(IpAddr::V6(ip)) => w.put(&[&[IPV6, 18], &ip.octets()[..], &[0, 0]].concat())?,
                None => {}
            }
        }
        w.put(&[2, TOKEN, 16])?;
        w.put(&self.token)?;
        w.put(&[BACKGROUND, 1, self.background])
    }

    fn read(r: &mut Reader<'_>) -> Result<Params, MessageError> {
        let seconds = r.u16()?;
        let count = usize::from(r.u8()?);
        if count > MAX_MEASURERS {
            return Err(MessageError::Field("measurers"));
        }
        let measurers = (0..count).map(|_| MeasurerId::read(r)).collect::<Result<_, _>>()?;
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
    fn write(&self, w: &mut Writer) -> Result<(), MessageError> {
        self.check()?;
        w.put(&[16])?;
        w.put(&self.token)?;
        w.put(&self.seconds.to_be_bytes())?;
        w.put(&self.sockets.to_be_bytes())?;
        w.put(&self.rate.to_be_bytes())?;
        w.put(&self.check_one_in.to_be_bytes())?;
        match self.address.ip() {
            IpAddr::V4(ip) => w.put(&[&[IPV4, 6], &ip.octets()[..]].concat())?,
            IpAddr::V6(ip) => w.put(&[&[IPV6, 18], &ip.octets()[..]].concat())?,
        }
        w.put(&self.address.port().to_be_bytes())?;
        w.put(&self.fingerprint)?;
        w.put(&self.relay.identity)?;
        w.put(&self.relay.onion)
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
        for reason in Reason::ALL {
            let cell = Message::Failed(reason).to_cell().unwrap();
            assert_eq!(Message::from_cell(&cell), Ok(Message::Failed(reason)));
            assert_eq!(Reason::from_name(reason.name()), Some(reason));
        }
    }

    #[test]
    fn what_is_out_of_range_is_neither_written_nor_read() {
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
