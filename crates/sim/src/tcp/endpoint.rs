//! One end of a connection: the handshake, the two halves, and the close.

use tidegate_control::units::{Span, Time};

use super::config::Config;
use super::receiver::{Receiver, millis};
use super::segment::{Flags, Segment};
use super::sender::Sender;

/// A SYN is sent again this many times (Linux: tcp_syn_retries).
const MAX_SYN_TIMEOUTS: u8 = 6;

/// One end of a TCP connection.
#[derive(Clone, Debug)]
pub struct Endpoint {
    sender: Sender,
    receiver: Receiver,
    state: State,
    active: bool,
    /// A SYN or SYN-ACK must be sent.
    syn_owed: bool,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Not begun: an active end before `connect`, a passive one before a SYN.
    Idle,
    /// The handshake is under way.
    Opening,
    /// Data flows; either side may have closed its direction.
    Established,
    /// Both directions are closed and everything is acknowledged.
    Closed,
    /// The peer has not answered for too long.
    Broken,
}

/// Effects of a segment that has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// Payload bytes that can be read now and could not before.
    pub received: u64,
    /// Payload bytes that the peer has acknowledged for the first time.
    pub acked: u64,
    /// The handshake has just finished.
    pub established: bool,
    /// The peer's last byte has just arrived in order.
    pub peer_closed: bool,
}

/// State of a connection, as the kernel reports it (TCP_INFO, SIOCOUTQNSD).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Info {
    /// Congestion window in segments.
    pub cwnd: u32,
    /// Slow start ends here, in segments.
    pub ssthresh: u32,
    /// Segments sent and not acknowledged (selectively acknowledged ones count).
    pub unacked: u32,
    /// Bytes written and never sent.
    pub not_sent: u64,
    /// Payload bytes of a full segment.
    pub mss: u32,
    /// Smoothed round-trip time, zero before the first measurement.
    pub srtt: Span,
    /// Retransmission timeout without backoff.
    pub rto: Span,
    /// Segments sent again.
    pub retransmissions: u32,
    /// Retransmission timeouts.
    pub timeouts: u32,
}

impl Endpoint {
    /// The end that connects.
    pub fn active(config: &Config) -> Endpoint {
        Endpoint::new(config, true)
    }

    /// The end that is connected to.
    pub fn passive(config: &Config) -> Endpoint {
        Endpoint::new(config, false)
    }

    fn new(config: &Config, active: bool) -> Endpoint {
        let (sender, receiver) = (Sender::new(config), Receiver::new(config));
        Endpoint { sender, receiver, state: State::Idle, active, syn_owed: false }
    }

    /// Both ends of a connection that has been there for long and idle: no handshake, no round trip known.
    pub(crate) fn standing(config: &Config, now: Time) -> [Endpoint; 2] {
        [true, false].map(|active| {
            let mut end = Endpoint::new(config, active);
            let mut offer = Segment::default();
            end.receiver.offer_first_window(&mut offer);
            end.sender.window_end = u64::from(offer.window);
            end.sender.on_standing(config, now);
            end.state = State::Established;
            end
        })
    }

    /// Begins the handshake. Bytes may be written before it ends. Does nothing on a passive end.
    pub fn connect(&mut self, _now: Time) {
        if self.active && self.state == State::Idle {
            self.state = State::Opening;
            self.syn_owed = true;
        }
    }

    /// Appends bytes to the stream, as many as the send buffer takes; gives how many.
    pub fn write(&mut self, bytes: u64) -> u64 {
        self.sender.write(bytes)
    }

    /// Bytes that the send buffer takes now; none after [`Endpoint::close`].
    pub(crate) fn send_space(&self) -> u64 {
        self.sender.space()
    }

    /// Whether the kernel would wake a writer: enough of the send buffer is free.
    pub(crate) fn writable(&self, config: &Config) -> bool {
        self.sender.writable(config)
    }

    /// Bytes that have arrived in order and have not been read.
    pub(crate) fn readable(&self) -> u64 {
        self.receiver.in_order() - self.receiver.consumed
    }

    /// The application takes bytes out of the receive buffer; gives how many there were to take.
    pub fn read(&mut self, config: &Config, now: Time, bytes: u64) -> u64 {
        self.receiver.read(config, now, bytes)
    }

    /// A segment from the peer. Whatever it says, the endpoint stays sound.
    pub fn on_segment(&mut self, config: &Config, now: Time, segment: &Segment) -> Arrival {
        let mut arrival = Arrival::default();
        match self.state {
            State::Idle | State::Opening => {
                if !self.on_handshake(config, now, segment) {
                    return arrival;
                }
                arrival.established = true;
            }
            State::Established | State::Closed if segment.flags.has(Flags::SYN) => {
                self.receiver.ack_now = true; // our last word of the handshake was lost
                return arrival;
            }
            State::Established | State::Closed => {}
            State::Broken => return arrival,
        }
        self.receiver.note_stamp(segment);
        if segment.flags.has(Flags::ACK) && !segment.flags.has(Flags::SYN) {
            let written = self.sender.written();
            let before = self.sender.flight.una.min(written);
            self.sender.on_ack(config, now, segment);
            arrival.acked = self.sender.flight.una.min(written) - before;
        }
        let rtt_ms = (segment.echo != 0 && segment.len >= config.mss)
            .then(|| millis(now).wrapping_sub(segment.echo).clamp(1, 1 << 20));
        let reception = self.receiver.on_data(config, now, segment, rtt_ms);
        arrival.received = reception.bytes;
        arrival.peer_closed = reception.closed;
        let all_acknowledged = self.sender.fin && self.sender.flight.una == self.sender.write_end;
        if all_acknowledged && self.receiver.closed() {
            self.state = State::Closed;
        }
        arrival
    }

    /// True when the handshake is complete with this segment.
    fn on_handshake(&mut self, config: &Config, now: Time, segment: &Segment) -> bool {
        let (syn, ack) = (segment.flags.has(Flags::SYN), segment.flags.has(Flags::ACK));
        match (self.active, self.state) {
            (false, State::Idle | State::Opening) if syn && !ack => {
                self.state = State::Opening;
                self.syn_owed = true;
                self.receiver.stamp = segment.stamp;
                self.sender.window_end = u64::from(segment.window);
                return false;
            }
            (false, State::Opening) if ack && !syn => {}
            (true, State::Opening) if ack && syn => {
                self.receiver.stamp = segment.stamp;
                self.receiver.ack_now = true;
                self.sender.window_end = u64::from(segment.window);
            }
            _ => return false,
        }
        self.state = State::Established;
        self.syn_owed = false;
        self.sender.on_established(config, now);
        true
    }

    /// The next segment to send, if one may be sent now. Call until it gives `None`.
    #[inline]
    pub fn poll_transmit(&mut self, config: &Config, now: Time) -> Option<Segment> {
        // Most questions come when nothing is to be sent.
        let established = matches!(self.state, State::Established | State::Closed);
        if established && !self.receiver.ack_now && self.sender.rests() {
            return None;
        }
        self.poll_busy(config, now)
    }

    fn poll_busy(&mut self, config: &Config, now: Time) -> Option<Segment> {
        let mut segment = match self.state {
            State::Idle | State::Broken => return None,
            State::Opening => {
                if !std::mem::take(&mut self.syn_owed) {
                    return None;
                }
                self.sender.on_syn_sent(config, now);
                let mut syn = Segment { flags: Flags::SYN, ..Segment::default() };
                self.receiver.offer_first_window(&mut syn);
                if !self.active {
                    syn.flags = syn.flags.with(Flags::ACK);
                    syn.echo = self.receiver.stamp;
                }
                syn.stamp = millis(now);
                return Some(syn);
            }
            State::Established | State::Closed => match self.sender.poll(config, now) {
                Some(segment) => {
                    if segment.len > 0 {
                        self.receiver.on_sent_data(config, now);
                    }
                    segment
                }
                // No data is due, but an acknowledgement is: a segment without payload.
                None if self.receiver.ack_now => {
                    Segment { seq: self.sender.flight.next, ..Segment::default() }
                }
                None => return None,
            },
        };
        self.receiver.acknowledge(config, &mut segment);
        segment.stamp = millis(now);
        Some(segment)
    }

    /// Packets of a burst that leaves now: of one train. A single one without segmentation offload.
    pub(crate) fn burst_packets(&self, config: &Config) -> u32 {
        if config.bursts { self.sender.burst_packets(config) } else { 1 }
    }

    /// A segment of so many payload bytes will have left the host's uplink at `departs`.
    pub(crate) fn queued(&mut self, departs: Time, bytes: u32) {
        if let Some(uplink) = self.sender.uplink.as_mut().filter(|_| bytes > 0) {
            uplink.push(departs, bytes);
        }
    }

    /// When [`Endpoint::on_timeout`] must be called; [`Time::NEVER`] if every timer is off.
    pub fn next_timeout(&self) -> Time {
        self.sender.timer.min(self.receiver.ack_due).min(self.sender.resumes)
    }

    /// Time has passed. Calling it early does no harm.
    pub fn on_timeout(&mut self, config: &Config, now: Time) {
        if self.receiver.ack_due <= now {
            self.receiver.on_ack_timer();
        }
        if self.sender.timer > now {
            return;
        }
        if self.state == State::Opening {
            self.syn_owed = true;
            self.sender.on_syn_timer();
            if self.sender.unanswered > MAX_SYN_TIMEOUTS {
                self.state = State::Broken;
            }
        } else {
            self.sender.on_timer(config, now);
            if u32::from(self.sender.unanswered) > config.max_timeouts {
                self.state = State::Broken;
            }
        }
        if self.state == State::Broken {
            self.sender.timer = Time::NEVER;
            self.receiver.ack_due = Time::NEVER;
        }
    }

    /// No more bytes will be written; a FIN follows the last one.
    pub(crate) fn close(&mut self) {
        self.sender.close();
    }

    /// Where the connection stands.
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Offset up to which bytes have been written.
    pub(crate) fn written(&self) -> u64 {
        self.sender.written()
    }

    /// Offset up to which bytes have been sent at least once.
    pub(crate) fn transmitted(&self) -> u64 {
        self.sender.flight.next.min(self.sender.written())
    }

    /// Offset up to which the peer has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.sender.flight.una.min(self.sender.written())
    }

    /// Offset up to which the peer's bytes have arrived in order.
    pub(crate) fn delivered_in_order(&self) -> u64 {
        self.receiver.in_order()
    }

    /// Whether the peer's bytes between these offsets have arrived, in order or not.
    pub(crate) fn has(&self, start: u64, end: u64) -> bool {
        self.receiver.has(start, end)
    }

    /// Touches what a segment will need, see [`crate::world`]'s looking ahead.
    pub(crate) fn look(&self) -> u64 {
        self.sender.look() ^ self.receiver.look()
    }

    /// The connection in figures.
    pub(crate) fn info(&self, config: &Config) -> Info {
        let sender = &self.sender;
        Info {
            cwnd: sender.window.cwnd,
            ssthresh: sender.window.ssthresh,
            unacked: sender.flight.packets,
            not_sent: self.written() - self.transmitted(),
            mss: config.mss,
            srtt: sender.rtt.smoothed(),
            rto: sender.rtt.timeout(config),
            retransmissions: sender.retransmissions,
            timeouts: sender.timeouts,
        }
    }
}
