//! Reorder buffer of a viewer: order, gaps and requests for missing packets.

mod pace;

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_control::units::{Span, Time};

use crate::MAX_SLICES;
use crate::packet::{Key, MAX_NACKS, Video};
use crate::parity;
use pace::Pace;

/// Maximum distance of a group from the newest, and largest plausible number.
const AHEAD: u32 = 4096;
const LAST: u32 = u32::MAX - 2 * AHEAD;
/// Maximum size of the buffer, bytes.
const MOST_BYTES: usize = 16 << 20;
/// How long groups stay for children's repairs, in addition to the player's patience.
const KEEP: Span = Span::from_millis(2500);
const LONGER: Span = Span::from_millis(500);
/// Playback begins after this time even if some slices are missing.
const BEGIN: Span = Span::from_millis(700);
/// Time between two requests for the same packet.
const AGAIN: Span = Span::from_millis(180);
/// Tolerance for a packet later than usual, ms.
const SLACK: i64 = 25;
/// A longer spacing of groups is forged.
const LONGEST_SPACING: Span = Span::from_secs(1);
/// How long after the next group begins an incomplete group is checked.
const SOON: Span = Span::from_millis(25);

/// Result of [`Reorder::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was missing.
    New,
    /// It is already there.
    Duplicate,
    /// The player skipped it before.
    Late,
    /// Its position cannot exist yet.
    Strange,
}

/// A request for a missing packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    /// Its position.
    pub key: Key,
    /// Number of earlier requests.
    pub before: u8,
}

/// Counters of the buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the player.
    pub delivered: u64,
    /// Packets that the player skipped.
    pub gaps: u64,
    /// Packets that arrived twice.
    pub duplicates: u64,
    /// Packets that arrived after the player skipped them.
    pub late: u64,
    /// Packets that parity recovered.
    pub recovered: u64,
}

/// The reorder buffer of a viewer.
#[derive(Clone, Debug)]
pub(crate) struct Reorder {
    slices: usize,
    parity: usize,
    skip_after: Span,
    /// Number of the first group in `groups`.
    base: u32,
    groups: VecDeque<Group>,
    /// The next packet for the player; `None` before playback begins.
    next: Option<Key>,
    /// Where playback ended when the viewer joined again.
    left: Option<Key>,
    /// The server has sent all groups before this one.
    confirmed: u32,
    /// When the first packet arrived.
    since: Option<Time>,
    pace: [Pace; MAX_SLICES],
    check: Time,
    spacing: Span,
    bytes: usize,
    /// Packets that parity recovered since the last [`Reorder::take_restored`].
    restored: Vec<Key>,
    /// Counters since the start.
    pub counters: Counters,
}

#[derive(Clone, Debug)]
struct Group {
    /// Number of data slices; zero before the first packet.
    data: u8,
    /// When its first packet was sent, ms of the server's clock.
    sent: u32,
    /// When this viewer learnt that the group exists.
    first: Time,
    check: Time,
    asked: u8,
    /// Bit set of the slices that are late.
    overdue: u32,
    have: u32,
    packets: Vec<Bytes>,
}

impl Reorder {
    /// An empty buffer. It skips a packet after `skip_after`.
    pub(crate) fn new(slices: usize, parity: usize, skip_after: Span) -> Reorder {
        Reorder {
            slices,
            parity,
            skip_after,
            base: 0,
            groups: VecDeque::new(),
            next: None,
            left: None,
            confirmed: 0,
            since: None,
            pace: [Pace::default(); MAX_SLICES],
            check: Time::NEVER,
            spacing: Span::ZERO,
            bytes: 0,
            restored: Vec::new(),
            counters: Counters::default(),
        }
    }

    /// Empties the buffer, which held packets of another stream, but keeps its counters.
    pub(crate) fn restart(&mut self, slices: usize, parity: usize) {
        let (counters, left) = (self.counters, self.left);
        *self = Reorder { counters, left, ..Reorder::new(slices, parity, self.skip_after) };
    }

    /// Empties the buffer of a viewer that joins again. Packets that the player misses meanwhile count as gaps.
    pub(crate) fn rejoin(&mut self, slices: usize, parity: usize) {
        self.left = self.next.or(self.left);
        self.restart(slices, parity);
    }

    /// Numbers of data and of parity slices.
    pub(crate) fn slices(&self) -> (usize, usize) {
        (self.slices, self.parity)
    }

    /// The newest known group.
    pub(crate) fn newest(&self) -> Option<u32> {
        self.groups.len().checked_sub(1).map(|last| self.base + last as u32)
    }

    /// The server announces that it sent all groups before `group`.
    pub(crate) fn confirm(&mut self, group: u32) {
        self.confirmed = self.confirmed.max(group);
    }

    /// Whether the buffer is so far from `group` that its contents cannot be of the stream.
    pub(crate) fn is_astray(&self, group: u32) -> bool {
        self.newest().is_some_and(|newest| newest.abs_diff(group) > AHEAD)
    }

    /// The oldest group of which packets are of use.
    pub(crate) fn oldest(&self) -> u32 {
        self.base
    }

    /// The group of the next packet for the player.
    pub(crate) fn played(&self) -> Option<u32> {
        self.next.map(|next| next.group)
    }

    /// The newest group of a slice and its arrival, if any.
    pub(crate) fn last(&self, slice: usize) -> Option<(u32, Time)> {
        let pace = &self.pace[slice];
        pace.first.map(|_| (pace.newest, pace.at))
    }

    /// Expected and late packets of a slice since the last call.
    pub(crate) fn take_losses(&mut self, slice: usize) -> (u32, u32) {
        let pace = &mut self.pace[slice];
        (std::mem::take(&mut pace.expected), std::mem::take(&mut pace.missed))
    }

    /// Mean deviation of a slice's lateness.
    pub(crate) fn deviation(&self, slice: usize) -> Span {
        Span::from_secs_f64(f64::from(self.pace[slice].deviation) / 1e3)
    }

    /// Time between groups as the server sends them.
    pub(crate) fn spacing(&self) -> Span {
        self.spacing
    }

    fn measure_spacing(&self) -> Span {
        let known = || self.groups.iter().enumerate().filter(|(_, group)| group.data > 0);
        match (known().next(), known().next_back()) {
            (Some((a, first)), Some((b, last))) if b > a => {
                let spacing = u64::from(last.sent.saturating_sub(first.sent)) / (b - a) as u64;
                Span::from_millis(spacing).min(LONGEST_SPACING)
            }
            _ => Span::ZERO,
        }
    }

    /// A buffered packet, encoded as a datagram.
    pub(crate) fn get(&self, key: Key) -> Option<Bytes> {
        let payload = self.payload(key)?.clone();
        let group = self.groups.get((key.group - self.base) as usize)?;
        Some(Video { key, data: group.data, sent: group.sent, payload }.encode())
    }

    /// The payload of a buffered packet.
    pub(crate) fn payload(&self, key: Key) -> Option<&Bytes> {
        let group = self.groups.get(key.group.checked_sub(self.base)? as usize)?;
        group.packets.get(usize::from(key.slice)).filter(|_| group.have >> key.slice & 1 == 1)
    }

    /// Whether a packet of a known group is missing and may still be played or forwarded.
    pub(crate) fn misses(&self, key: Key) -> bool {
        let index = key.group.checked_sub(self.base).map(|index| index as usize);
        let group = index.and_then(|index| self.groups.get(index));
        group.is_some_and(|group| group.asked > 0 && group.have >> key.slice & 1 == 0)
    }

    /// Takes the packets that parity recovered since the last call.
    pub(crate) fn take_restored(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.restored)
    }

    /// When [`Reorder::look`] is due.
    pub(crate) fn next_time(&self) -> Time {
        self.check
    }

    /// Inserts a packet. `tree` says that it came through its tree; repairs do not show the pace of a slice.
    pub(crate) fn insert(&mut self, now: Time, video: &Video, tree: bool) -> Arrival {
        let Key { group, slice } = video.key;
        let at = usize::from(slice);
        let total = self.slices + self.parity;
        let data = usize::from(video.data);
        if at >= total || data > self.slices || (at < self.slices && at >= data) {
            return Arrival::Strange;
        }
        if self.groups.is_empty() {
            (self.base, self.since) = (group, Some(now));
        }
        let newest = self.newest().unwrap_or(group);
        if group > newest.saturating_add(AHEAD).min(LAST) || group.saturating_add(AHEAD) < self.base {
            return Arrival::Strange;
        }
        if tree || self.pace[at].first.is_none() {
            self.pace[at].arrived(now, video);
        }
        if group < self.base {
            self.counters.late += 1;
            return Arrival::Late;
        }
        self.reach(now, group);
        let index = (group - self.base) as usize;
        let room = &mut self.groups[index];
        if room.packets.is_empty() {
            if group >= self.confirmed && room.first < now {
                // The group is older than any viewer can know, so a number is wrong.
                (room.first, room.check) = (now, now + SOON);
                self.check = self.check.min(room.check);
            }
            room.sent = video.sent;
            room.packets = vec![Bytes::new(); total];
        }
        if tree && room.overdue >> slice & 1 == 1 && now < room.first + self.skip_after {
            // The packet was late, not lost.
            room.overdue &= !(1 << slice);
            self.pace[at].missed = self.pace[at].missed.saturating_sub(1);
        }
        if room.have >> slice & 1 == 1 {
            self.counters.duplicates += 1;
            return Arrival::Duplicate;
        }
        // A forged number must not end a group early.
        room.data = room.data.max(video.data);
        room.sent = room.sent.min(video.sent);
        room.have |= 1 << slice;
        room.packets[at] = video.payload.clone();
        self.bytes += video.payload.len();
        let played = self.next.is_some_and(|next| video.key < next && at < self.slices);
        self.counters.late += u64::from(played);
        if played { Arrival::Late } else { Arrival::New }
    }

    /// The stream ends before `group`: what is missing before it is requested.
    pub(crate) fn end(&mut self, now: Time, group: u32) {
        if !self.groups.is_empty() && !self.is_astray(group) {
            self.reach(now, group);
        }
    }

    /// Makes all groups up to `group` known.
    fn reach(&mut self, now: Time, group: u32) {
        if self.newest().is_some_and(|newest| newest >= group) {
            return;
        }
        self.forget(now);
        self.spacing = self.measure_spacing();
        let soon = now + SOON;
        if let Some(last) = self.groups.back_mut().filter(|last| last.asked == 0) {
            // The previous newest group can now be complete or missing packets.
            let whole = last.data > 0 && !last.have & ((1 << last.data) - 1) == 0;
            last.check = if whole { Time::NEVER } else { soon };
            self.check = self.check.min(last.check);
        }
        while self.groups.is_empty() || self.base + (self.groups.len() as u32) <= group {
            let newest = self.groups.is_empty() || self.base + (self.groups.len() as u32) == group;
            let check = if newest { now + self.skip_after } else { soon };
            self.check = self.check.min(check);
            self.groups.push_back(Group {
                data: 0,
                sent: 0,
                first: now,
                check,
                asked: 0,
                overdue: 0,
                have: 0,
                packets: Vec::new(),
            });
        }
    }

    /// The next payload for the player, with the server's time of sending in ms.
    pub(crate) fn next(&mut self, now: Time) -> Option<(Bytes, u32)> {
        if self.next.is_none() {
            self.begin(now)?;
        }
        loop {
            let next = self.next?;
            let group = self.groups.get((next.group - self.base) as usize)?;
            let slice = usize::from(next.slice);
            let data = if group.data == 0 { self.slices } else { usize::from(group.data) };
            if slice >= data {
                self.next = Some(Key { group: next.group + 1, slice: 0 });
                continue;
            }
            if group.have >> slice & 1 == 1 {
                self.counters.delivered += 1;
                self.next = Some(Key { slice: next.slice + 1, ..next });
                return Some((group.packets[slice].clone(), group.sent));
            }
            // A packet that exists is known by a later packet of its group or a later group.
            let later = group.have >> slice > 0 || self.newest() > Some(next.group);
            // A forged number must not make the player skip unsent packets.
            let sent = group.have != 0 || next.group < self.confirmed;
            if !later || !sent || now < group.first + self.skip_after {
                return None;
            }
            self.counters.gaps += 1;
            self.next = Some(Key { slice: next.slice + 1, ..next });
        }
    }

    /// Begins playback with the first group of which all active slices have a packet.
    fn begin(&mut self, now: Time) -> Option<()> {
        let since = self.since?;
        let heard = || self.pace[..self.slices].iter().filter_map(|pace| pace.first);
        let newest = self.newest()?;
        let data = self.groups.iter().rev().map(|group| group.data).find(|data| *data > 0)?;
        if heard().count() < usize::from(data) && now < since + BEGIN {
            return None;
        }
        let group = heard().max()?.clamp(self.base, newest);
        // A server that was started again counts groups from the beginning: what was missed is unknown.
        if let Some(left) = self.left.take().filter(|left| left.group < group) {
            let groups = u64::from(group - left.group);
            self.counters.gaps += (groups * self.slices as u64).saturating_sub(left.slice.into());
        }
        self.next = Some(Key { group, slice: 0 });
        Some(())
    }

    /// Recovers packets from parity, returns packets to request, drops old groups.
    pub(crate) fn look(&mut self, now: Time) -> Vec<Ask> {
        let mut asks = Vec::new();
        if now < self.check {
            return asks;
        }
        let from = self.next.map_or(0, |next| next.group.saturating_sub(self.base)) as usize;
        let last = self.groups.len().saturating_sub(1);
        self.check = Time::NEVER;
        for index in from..self.groups.len() {
            if self.groups[index].check <= now {
                self.look_at(now, index, index == last, &mut asks);
            }
            self.check = self.check.min(self.groups[index].check);
        }
        asks
    }

    fn look_at(&mut self, now: Time, index: usize, last: bool, asks: &mut Vec<Ask>) {
        let total = self.slices + self.parity;
        let group = &self.groups[index];
        let data = if group.data == 0 { self.slices } else { usize::from(group.data) };
        let missing = !group.have & ((1 << data) - 1);
        let done = |check: Time| (check, group.asked);
        let give_up = group.first + self.skip_after;
        let (check, asked) = if missing == 0 {
            done(Time::NEVER)
        } else if now >= give_up {
            // The player skips it, so requests end.
            done(if now > give_up { Time::NEVER } else { Time(now.0 + 1) })
        } else if last && group.asked == 0 {
            // The newest group is in flight. Packets are missing only when the next group arrives.
            done(give_up)
        } else {
            let mut overdue: u32 = 0;
            let mut soonest = give_up;
            for slice in (0..data).filter(|slice| missing >> slice & 1 == 1) {
                let expected = self.expected(group, slice);
                if expected <= now {
                    overdue |= 1 << slice;
                } else {
                    soonest = soonest.min(expected);
                }
            }
            let shards = (self.slices..total).filter(|slice| group.have >> slice & 1 == 1).count();
            if overdue != 0 && missing.count_ones() as usize <= shards {
                self.note(index, overdue);
                return self.restore(index, data);
            }
            // The first request omits packets that parity will recover.
            let spared = if group.asked == 0 { shards } else { 0 };
            let wanted = (overdue.count_ones() as usize).saturating_sub(spared);
            let known = group.have != 0 || self.base + (index as u32) < self.confirmed;
            if wanted == 0 {
                done(soonest)
            } else if !known || asks.len() >= MAX_NACKS {
                done(now + SOON * 4)
            } else {
                let (number, before) = (self.base + index as u32, group.asked);
                let slices = (0..data as u8).filter(|slice| overdue >> slice & 1 == 1).take(wanted);
                asks.extend(slices.map(|slice| Ask { key: Key { group: number, slice }, before }));
                if before == 0 {
                    self.note(index, overdue);
                }
                let wait = AGAIN * (1 + u64::from(before));
                ((now + wait).min(give_up), before.saturating_add(1))
            }
        };
        (self.groups[index].check, self.groups[index].asked) = (check, asked);
    }

    /// Counts expected and late packets of the slices.
    fn note(&mut self, index: usize, overdue: u32) {
        let overdue = overdue & !self.groups[index].overdue;
        self.groups[index].overdue |= overdue;
        for slice in (0..self.slices).filter(|slice| overdue >> slice & 1 == 1) {
            self.pace[slice].missed += 1;
        }
    }

    /// When the packet of a slice should have arrived.
    fn expected(&self, group: &Group, slice: usize) -> Time {
        let pace = &self.pace[slice];
        if group.data == 0 || pace.first.is_none() {
            return group.first + Span::from_millis(100);
        }
        let at = f64::from(group.sent) + f64::from(pace.late) + 4.0 * f64::from(pace.deviation);
        Time(((at as i64 + SLACK).max(0) as u64).saturating_mul(1_000_000))
    }

    fn restore(&mut self, index: usize, data: usize) {
        let group = &mut self.groups[index];
        group.check = Time::NEVER;
        let have = group.have;
        let there = |slice: &usize| have >> slice & 1 == 1;
        let present: Vec<(usize, &Bytes)> =
            (0..data).filter(there).map(|slice| (slice, &group.packets[slice])).collect();
        let shards: Vec<(usize, &Bytes)> = (self.slices..self.slices + self.parity)
            .filter(there)
            .map(|slice| (slice - self.slices, &group.packets[slice]))
            .collect();
        for (slice, payload) in parity::restore(data, self.parity, &present, &shards) {
            self.bytes += payload.len();
            self.counters.recovered += 1;
            self.restored.push(Key { group: self.base + index as u32, slice: slice as u8 });
            group.have |= 1 << slice;
            group.packets[slice] = payload;
        }
    }

    /// Drops groups that are played and old, or exceed the size limit.
    fn forget(&mut self, now: Time) {
        let Some(next) = self.next else { return };
        while self.base < next.group && self.groups.len() > 1 {
            let old = now.since(self.groups[0].first) > KEEP.max(self.skip_after + LONGER);
            if !old && self.bytes <= MOST_BYTES {
                break;
            }
            if let Some(group) = self.groups.pop_front() {
                self.bytes -= group.packets.iter().map(Bytes::len).sum::<usize>();
                self.base += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
