//! Delivery rate samples (draft-cheng-iccrg-delivery-rate-estimation), as Linux takes them (`tcp_rate.c`).
//!
//! A sample covers the time between the sending of a segment and its acknowledgement: how many segments arrived
//! meanwhile, and how long it took to send or to acknowledge them, whichever took longer.

use std::collections::VecDeque;

use tidegate_control::units::{Span, Time};

use super::flight::Delivery;

/// State of the connection when segments left, all at the same time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    sent: Time,
    /// Offset after the last segment.
    end: u64,
    delivered: u64,
    delivered_at: Time,
    first_sent: Time,
    app_limited: bool,
    /// Segments in the network when these had left.
    in_network: u32,
    /// Segments lost until then.
    lost: u64,
}

/// A rate sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    /// Segments delivered within the interval.
    pub delivered: u64,
    /// The longer one of the times to send and to acknowledge them.
    pub interval: Span,
    /// Segments that were delivered before the interval began.
    pub prior_delivered: u64,
    /// The application had nothing to send at some time of the interval.
    pub app_limited: bool,
    /// Segments in the network when the latest of the delivered ones had left.
    pub in_network: u32,
    /// Segments lost since then.
    pub lost: u64,
}

impl Rate {
    /// Segments per second.
    pub(super) fn per_s(&self) -> f64 {
        self.delivered as f64 / self.interval.as_secs_f64()
    }
}

/// Neighbouring segments, sent at one time and found to be lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Loss {
    /// Offsets of their first byte and after their last one.
    pub start: u64,
    pub end: u64,
    pub packets: u32,
    /// Segments in the network when they had left.
    pub in_network: u32,
    /// Segments lost since then, these included.
    pub lost: u64,
    /// The application limited the sender when they left.
    pub app_limited: bool,
}

/// The estimator of a sender.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    /// By time of sending, from the oldest segment under way.
    marks: VecDeque<Mark>,
    /// When the segments of the latest sample left. Segments that left earlier do not give one.
    sampled: Time,
    /// Segments delivered so far.
    pub delivered: u64,
    /// Segments found to be lost so far.
    pub lost: u64,
    /// When the last of them was acknowledged, or the first segment after a pause was sent.
    pub delivered_at: Time,
    /// When the segment of the last sample, or the first one after a pause, was sent.
    first_sent: Time,
    /// Samples count as limited by the application until more segments than this are delivered; zero: they do not.
    app_limited_until: u64,
}

impl DeliveryRate {
    pub(crate) fn new() -> DeliveryRate {
        DeliveryRate {
            marks: VecDeque::new(),
            sampled: Time::ZERO,
            delivered: 0,
            lost: 0,
            delivered_at: Time::ZERO,
            first_sent: Time::ZERO,
            // Linux checks before the first write: nothing is there to be sent.
            app_limited_until: 1,
        }
    }

    /// A segment up to `end` leaves; `idle` if no other one is under way. `in_network`: segments, this one included.
    pub(crate) fn on_sent(&mut self, now: Time, end: u64, idle: bool, in_network: u32) {
        if idle {
            self.first_sent = now;
            self.delivered_at = now;
        }
        if let Some(last) = self.marks.back_mut()
            && last.sent == now
            && last.delivered == self.delivered
        {
            last.end = last.end.max(end);
            last.in_network = in_network;
            return;
        }
        self.marks.push_back(Mark {
            sent: now,
            end,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.app_limited(),
            in_network,
            lost: self.lost,
        });
    }

    /// Whether the application limits what is being sent.
    pub(crate) fn app_limited(&self) -> bool {
        self.app_limited_until > 0
    }

    /// Everything written has been sent, and the window would allow more.
    pub(crate) fn on_app_limited(&mut self, in_network: u32) {
        self.app_limited_until = (self.delivered + u64::from(in_network)).max(1);
    }

    /// Segments were delivered. Gives a sample, unless none of them has a mark or the sample cannot be true: it covers
    /// less than the smallest round trip.
    pub(crate) fn on_delivered(&mut self, now: Time, deliveries: [&Delivery; 2], min: Span) -> Option<Rate> {
        let packets = deliveries[0].packets + deliveries[1].packets;
        if packets == 0 {
            return None;
        }
        let [first, second] = deliveries.map(|delivery| delivery.latest.map(|(sent, end, _)| (sent, end)));
        let mark = first.max(second).filter(|(sent, _)| *sent >= self.sampled);
        let mark = mark.and_then(|(sent, end)| self.mark(sent, end));
        self.delivered += u64::from(packets);
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        self.delivered_at = now;
        let mark = mark?;
        (self.first_sent, self.sampled) = (mark.sent, mark.sent);
        let interval = mark.sent.since(mark.first_sent).max(now.since(mark.delivered_at));
        (interval >= min && interval > Span::ZERO).then_some(Rate {
            delivered: self.delivered - mark.delivered,
            interval,
            prior_delivered: mark.delivered,
            app_limited: mark.app_limited,
            in_network: mark.in_network,
            lost: self.lost - mark.lost,
        })
    }

    /// Segments that left at `sent` are lost. `None` if the receiver had them and has thrown them away.
    pub(crate) fn on_lost(&mut self, sent: Time, start: u64, end: u64, packets: u32) -> Option<Loss> {
        self.lost += u64::from(packets);
        let mark = self.mark(sent, end)?;
        let (in_network, lost, app_limited) = (mark.in_network, self.lost - mark.lost, mark.app_limited);
        Some(Loss { start, end, packets, in_network, lost, app_limited })
    }

    /// No segment that left before `oldest` is under way any more.
    pub(crate) fn forget(&mut self, oldest: Time) {
        while self.marks.front().is_some_and(|mark| mark.sent < oldest) {
            self.marks.pop_front();
        }
    }

    /// The mark of the segment before `end` that left at `sent`.
    fn mark(&self, sent: Time, end: u64) -> Option<Mark> {
        let first = self.marks.partition_point(|mark| mark.sent < sent);
        let same_time = self.marks.range(first..).take_while(|mark| mark.sent == sent);
        same_time.clone().find(|mark| mark.end >= end).or_else(|| same_time.last()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn delivery(packets: u32, sent: Time, end: u64) -> Delivery {
        Delivery { packets, latest: Some((sent, end, false)), ..Delivery::default() }
    }

    #[test]
    fn a_sample_is_as_slow_as_the_slower_side() {
        let none = Delivery::default();
        let mut rate = DeliveryRate::new();
        // Ten segments in ten milliseconds are acknowledged at once, 100 ms after the first left.
        for packet in 0..10 {
            rate.on_sent(ms(packet), packet + 1, packet == 0, 1);
        }
        let sample = rate.on_delivered(ms(100), [&delivery(10, ms(9), 10), &none], Span::from_millis(91));
        let sample = sample.expect("a sample");
        assert_eq!(
            (sample.delivered, sample.interval, sample.prior_delivered),
            (10, Span::from_millis(100), 0)
        );
        assert!(sample.app_limited, "nothing was there to be sent before the first write");
        // The next ten leave within 30 ms and are acknowledged within 4 ms of each other: sending was slower.
        for packet in 0..10 {
            rate.on_sent(ms(100 + 3 * packet), packet + 11, packet == 0, 1);
        }
        rate.on_delivered(ms(190), [&delivery(1, ms(100), 11), &none], Span::ZERO);
        let sample =
            rate.on_delivered(ms(194), [&delivery(9, ms(127), 20), &none], Span::ZERO).expect("a sample");
        assert_eq!((sample.delivered, sample.interval), (10, Span::from_millis(94)));
        assert!(!sample.app_limited);
        rate.forget(ms(127));
        assert!(rate.marks.len() <= 1);
    }

    #[test]
    fn a_sample_shorter_than_the_smallest_round_trip_is_not_one() {
        let mut rate = DeliveryRate::new();
        rate.on_sent(ms(10), 1, true, 1);
        let early =
            rate.on_delivered(ms(15), [&delivery(1, ms(10), 1), &Delivery::default()], Span::from_millis(50));
        assert_eq!(early, None);
        assert_eq!(rate.delivered, 1);
    }

    #[test]
    fn a_loss_is_judged_by_the_network_when_its_segment_left() {
        let mut rate = DeliveryRate::new();
        for packet in 0..10u32 {
            rate.on_sent(ms(packet.into()), u64::from(packet) + 1, packet == 0, packet + 1);
        }
        let none = Delivery::default();
        rate.on_delivered(ms(100), [&delivery(1, ms(9), 10), &none], Span::ZERO).expect("a sample");
        let lost = rate.on_lost(ms(3), 3, 4, 1).expect("its mark is kept");
        assert_eq!((lost.in_network, lost.lost, lost.app_limited), (4, 1, true));
        assert_eq!(rate.on_lost(ms(4), 4, 5, 1).map(|loss| (loss.in_network, loss.lost)), Some((5, 2)));
        assert_eq!(rate.on_delivered(ms(101), [&delivery(1, ms(8), 9), &none], Span::ZERO), None, "older");
        rate.forget(ms(9));
        assert_eq!(rate.on_lost(ms(5), 5, 6, 1), None);
        assert_eq!(rate.lost, 3);
        rate.on_sent(ms(102), 4, false, 7);
        let sample = rate.on_delivered(ms(202), [&delivery(1, ms(102), 4), &none], Span::ZERO);
        assert_eq!(
            sample.map(|sample| (sample.in_network, sample.lost)),
            Some((7, 0)),
            "lost before it left"
        );
    }
}
