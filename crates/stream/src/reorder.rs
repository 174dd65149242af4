//! A viewer's packets between arrival and player: order, gaps, what to ask for again.

mod pace;

use std::collections::VecDeque;

use bytes::Bytes;
use tidegate_control::units::{Span, Time};

use crate::MAX_SLICES;
use crate::packet::{Key, MAX_NACKS, Video};
use crate::parity;
use pace::Pace;

/// A group so far from the newest is no part of this stream, nor is one with such a number.
const AHEAD: u32 = 4096;
const LAST: u32 = u32::MAX - 2 * AHEAD;
/// The most bytes kept.
const MOST_BYTES: usize = 16 << 20;
/// Groups are kept so long, and so much longer than the player waits, for children that miss some of it.
const KEEP: Span = Span::from_millis(2500);
const LONGER: Span = Span::from_millis(500);
/// A viewer that does not hear all slices begins without the rest after so long.
const BEGIN: Span = Span::from_millis(700);
/// Between the first request for a packet and the next.
const AGAIN: Span = Span::from_millis(180);
/// What a packet may be later than its slice usually is.
const SLACK: i64 = 25;
/// Longer ones are forged, or the stream is hardly one.
const LONGEST_SPACING: Span = Span::from_secs(1);
/// A group that is not whole when the next one comes is looked at after so long.
const SOON: Span = Span::from_millis(25);

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It was missing.
    New,
    /// It is here already.
    Duplicate,
    /// Nobody waits for it any more.
    Late,
    /// Its place is none that the stream could have reached.
    Strange,
}

/// A packet to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Its place.
    pub key: Key,
    /// How often it was asked for before.
    pub before: u8,
}

/// Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets handed to the player.
    pub delivered: u64,
    /// Packets given up.
    pub gaps: u64,
    /// Packets that came twice.
    pub duplicates: u64,
    /// Packets that came after they were given up.
    pub late: u64,
    /// Packets that were made from parity.
    pub recovered: u64,
}

/// The buffer of one viewer.
#[derive(Clone, Debug)]
pub struct Reorder {
    slices: usize,
    parity: usize,
    skip_after: Span,
    /// Number of the first of `groups`.
    base: u32,
    groups: VecDeque<Group>,
    /// The next packet of the player; none before the beginning.
    next: Option<Key>,
    /// The server has sent all groups before this one.
    confirmed: u32,
    /// When the first packet came.
    since: Option<Time>,
    pace: [Pace; MAX_SLICES],
    check: Time,
    spacing: Span,
    bytes: usize,
    /// What parity made good since this was last asked.
    restored: Vec<Key>,
    /// What happened.
    pub counters: Counters,
}

#[derive(Clone, Debug)]
struct Group {
    /// Data slices; zero until a packet of it came.
    data: u8,
    /// Milliseconds of the server's clock when its first packet was sent.
    sent: u32,
    /// When this viewer first knew of it.
    first: Time,
    check: Time,
    asked: u8,
    /// Slices whose packet was not here in time.
    overdue: u32,
    have: u32,
    /// Slices whose packet came by their tree.
    by_tree: u32,
    packets: Vec<Bytes>,
}

impl Reorder {
    /// Waits for the first packet of a stream of so many slices; gives a packet up after `skip_after`.
    pub fn new(slices: usize, parity: usize, skip_after: Span) -> Reorder {
        Reorder {
            slices,
            parity,
            skip_after,
            base: 0,
            groups: VecDeque::new(),
            next: None,
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

    /// Forgets everything but its counts.
    pub fn restart(&mut self, slices: usize, parity: usize) {
        *self = Reorder { counters: self.counters, ..Reorder::new(slices, parity, self.skip_after) };
    }

    /// Data slices and those of parity.
    pub fn slices(&self) -> (usize, usize) {
        (self.slices, self.parity)
    }

    /// The newest group known of.
    pub fn newest(&self) -> Option<u32> {
        self.groups.len().checked_sub(1).map(|last| self.base + last as u32)
    }

    /// The server says that it has sent all groups before that one.
    pub fn confirm(&mut self, group: u32) {
        self.confirmed = self.confirmed.max(group);
    }

    /// Whether what is here lies so far from a group of the stream that it can be no part of it.
    pub fn is_astray(&self, group: u32) -> bool {
        self.newest().is_some_and(|newest| newest.abs_diff(group) > AHEAD)
    }

    /// Whether the player got something.
    pub fn has_begun(&self) -> bool {
        self.next.is_some()
    }

    /// The group that the player is at.
    pub fn played(&self) -> Option<u32> {
        self.next.map(|next| next.group)
    }

    /// The newest group of a slice and when it came, if any did.
    pub fn last(&self, slice: usize) -> Option<(u32, Time)> {
        let pace = &self.pace[slice];
        pace.first.map(|_| (pace.newest, pace.at))
    }

    /// Packets of a slice that were expected and that were missed when expected, since this was last asked.
    pub fn take_losses(&mut self, slice: usize) -> (u32, u32) {
        let pace = &mut self.pace[slice];
        (std::mem::take(&mut pace.expected), std::mem::take(&mut pace.missed))
    }

    /// How unevenly a slice comes: the mean deviation of its packets' lateness.
    pub fn deviation(&self, slice: usize) -> Span {
        Span::from_secs_f64(f64::from(self.pace[slice].deviation) / 1e3)
    }

    /// The time from one group to the next, as sent.
    pub fn spacing(&self) -> Span {
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

    /// A packet that is still here, as a datagram.
    pub fn get(&self, key: Key) -> Option<Bytes> {
        let payload = self.payload(key)?.clone();
        let group = self.groups.get((key.group - self.base) as usize)?;
        Some(Video { key, data: group.data, sent: group.sent, payload }.encode())
    }

    /// What a packet that is still here carries.
    pub fn payload(&self, key: Key) -> Option<&Bytes> {
        let group = self.groups.get(key.group.checked_sub(self.base)? as usize)?;
        group.packets.get(usize::from(key.slice)).filter(|_| group.have >> key.slice & 1 == 1)
    }

    /// What a packet carries that came by its slice's tree: for what else is here, no parent in it can be blamed.
    pub fn from_tree(&self, key: Key) -> Option<&Bytes> {
        let payload = self.payload(key)?;
        (self.groups[(key.group - self.base) as usize].by_tree >> key.slice & 1 == 1).then_some(payload)
    }

    /// Whether a packet of a known group is not here and may still be played or passed on.
    pub fn misses(&self, key: Key) -> bool {
        let index = key.group.checked_sub(self.base).map(|index| index as usize);
        let group = index.and_then(|index| self.groups.get(index));
        group.is_some_and(|group| group.asked > 0 && group.have >> key.slice & 1 == 0)
    }

    /// Packets that parity made good since this was last asked.
    pub fn take_restored(&mut self) -> Vec<Key> {
        std::mem::take(&mut self.restored)
    }

    /// When [`Reorder::look`] has something to do.
    pub fn next_time(&self) -> Time {
        self.check
    }

    /// A packet arrives. `tree`: by its slice's tree; repairs say nothing about how the slice comes.
    pub fn insert(&mut self, now: Time, video: &Video, tree: bool) -> Arrival {
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
                // Nobody could know of it before: somebody counts wrong.
                (room.first, room.check) = (now, now + SOON);
                self.check = self.check.min(room.check);
            }
            room.sent = video.sent;
            room.packets = vec![Bytes::new(); total];
        }
        if tree && room.overdue >> slice & 1 == 1 && now < room.first + self.skip_after {
            // It was late, not lost.
            room.overdue &= !(1 << slice);
            self.pace[at].missed = self.pace[at].missed.saturating_sub(1);
        }
        if room.have >> slice & 1 == 1 {
            self.counters.duplicates += 1;
            return Arrival::Duplicate;
        }
        // One forged number must not end a group early.
        room.data = room.data.max(video.data);
        room.sent = room.sent.min(video.sent);
        room.have |= 1 << slice;
        room.by_tree |= u32::from(tree) << slice;
        room.packets[at] = video.payload.clone();
        self.bytes += video.payload.len();
        let played = self.next.is_some_and(|next| video.key < next && at < self.slices);
        self.counters.late += u64::from(played);
        if played { Arrival::Late } else { Arrival::New }
    }

    /// Groups up to `group` are known of from now on.
    fn reach(&mut self, now: Time, group: u32) {
        if self.newest().is_some_and(|newest| newest >= group) {
            return;
        }
        self.forget(now);
        self.spacing = self.measure_spacing();
        let soon = now + SOON;
        if let Some(last) = self.groups.back_mut().filter(|last| last.asked == 0) {
            // It is not the newest any more.
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
                by_tree: 0,
                packets: Vec::new(),
            });
        }
    }

    /// The next bytes for the player: whole TS packets, and when the server sent them (its milliseconds).
    pub fn next(&mut self, now: Time) -> Option<(Bytes, u32)> {
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
            // Nobody knows that it exists until something after it came.
            let later = group.have >> slice > 0 || self.newest() > Some(next.group);
            // One forged number must not make the player skip what is yet to be sent.
            let sent = group.have != 0 || next.group < self.confirmed;
            if !later || !sent || now < group.first + self.skip_after {
                return None;
            }
            self.counters.gaps += 1;
            self.next = Some(Key { slice: next.slice + 1, ..next });
        }
    }

    /// Begins with the first group of which all slices that are heard have a packet.
    fn begin(&mut self, now: Time) -> Option<()> {
        let since = self.since?;
        let heard = || self.pace[..self.slices].iter().filter_map(|pace| pace.first);
        let newest = self.newest()?;
        let data = self.groups.iter().rev().map(|group| group.data).find(|data| *data > 0)?;
        if heard().count() < usize::from(data) && now < since + BEGIN {
            return None;
        }
        let group = heard().max()?.clamp(self.base, newest);
        self.next = Some(Key { group, slice: 0 });
        Some(())
    }

    /// Packets that should be here and are not: restores what parity can, gives what to ask for, forgets what
    /// was played long ago.
    pub fn look(&mut self, now: Time) -> Vec<Ask> {
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
            // The player goes on without it, and nobody asks any more.
            done(if now > give_up { Time::NEVER } else { Time(now.0 + 1) })
        } else if last && group.asked == 0 {
            // The newest group is on its way: it is missed when the next one comes.
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
            // What parity will make good once the others are here is not asked for at first.
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

    /// Counts what slices missed.
    fn note(&mut self, index: usize, overdue: u32) {
        let overdue = overdue & !self.groups[index].overdue;
        self.groups[index].overdue |= overdue;
        for slice in (0..self.slices).filter(|slice| overdue >> slice & 1 == 1) {
            self.pace[slice].missed += 1;
        }
    }

    /// When the packet of a slice should be here.
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

    /// Drops groups that were played a while ago, or that there is no room for.
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
