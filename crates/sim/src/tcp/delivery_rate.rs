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
}

/// The estimator of a sender.
#[derive(Clone, Debug)]
pub(super) struct DeliveryRate {
    /// By time of sending. A sample removes the older ones.
    marks: VecDeque<Mark>,
    /// Segments delivered so far.
    pub delivered: u64,
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
            delivered: 0,
            delivered_at: Time::ZERO,
            first_sent: Time::ZERO,
            // Linux checks before the first write: nothing is there to be sent.
            app_limited_until: 1,
        }
    }

    /// A segment up to `end` leaves; `idle` if no other one is under way.
    pub(crate) fn on_sent(&mut self, now: Time, end: u64, idle: bool) {
        if idle {
            self.first_sent = now;
            self.delivered_at = now;
        }
        if let Some(last) = self.marks.back_mut()
            && last.sent == now
            && last.delivered == self.delivered
        {
            last.end = last.end.max(end);
            return;
        }
        self.marks.push_back(Mark {
            sent: now,
            end,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent: self.first_sent,
            app_limited: self.app_limited(),
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
        let mark = first.max(second).and_then(|(sent, end)| self.take(sent, end));
        self.delivered += u64::from(packets);
        if self.delivered > self.app_limited_until {
            self.app_limited_until = 0;
        }
        self.delivered_at = now;
        let mark = mark?;
        self.first_sent = mark.sent;
        let interval = mark.sent.since(mark.first_sent).max(now.since(mark.delivered_at));
        (interval >= min && interval > Span::ZERO).then_some(Rate {
            delivered: self.delivered - mark.delivered,
            interval,
            prior_delivered: mark.delivered,
            app_limited: mark.app_limited,
        })
    }

    /// The mark of the segment before `end` that left at `sent`. Forgets those that left earlier.
    fn take(&mut self, sent: Time, end: u64) -> Option<Mark> {
        while self.marks.front().is_some_and(|mark| mark.sent < sent) {
            self.marks.pop_front();
        }
        let same_time = self.marks.iter().take_while(|mark| mark.sent == sent);
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
            rate.on_sent(ms(packet), packet + 1, packet == 0);
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
            rate.on_sent(ms(100 + 3 * packet), packet + 11, packet == 0);
        }
        rate.on_delivered(ms(190), [&delivery(1, ms(100), 11), &none], Span::ZERO);
        let sample =
            rate.on_delivered(ms(194), [&delivery(9, ms(127), 20), &none], Span::ZERO).expect("a sample");
        assert_eq!((sample.delivered, sample.interval), (10, Span::from_millis(94)));
        assert!(!sample.app_limited);
        assert!(rate.marks.len() <= 1);
    }

    #[test]
    fn a_sample_shorter_than_the_smallest_round_trip_is_not_one() {
        let mut rate = DeliveryRate::new();
        rate.on_sent(ms(10), 1, true);
        let early =
            rate.on_delivered(ms(15), [&delivery(1, ms(10), 1), &Delivery::default()], Span::from_millis(50));
        assert_eq!(early, None);
        assert_eq!(rate.delivered, 1);
    }
}
