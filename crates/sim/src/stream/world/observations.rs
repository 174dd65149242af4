//! Builds the report of a run.

use tidegate_control::random::mix;
use tidegate_control::units::{Span, Time};
use tidegate_stream::SERVER;
use tidegate_stream::packet::PAYLOAD;
use tidegate_stream::tree::NOBODY;
use tidegate_stream::viewer::Phase;

use super::super::plan::Exit;
use super::super::report::{Report, Second, Watched};
use super::World;

/// Longest transit of a packet. At the end of a run, packets younger than this plus the players' buffer do not count
/// as missed.
const LAST: Span = Span::from_millis(500);

impl World<'_> {
    /// Once a second.
    pub(super) fn second(&mut self, now: Time) {
        for node in &mut self.nodes {
            let killed = matches!(node.plan.goes, Some((_, Exit::Killed)));
            if let Some(gone) = node.gone.filter(|_| killed && !node.found)
                && self.server.member(node.peer).is_none()
            {
                node.found = true;
                self.report.found.push(now.since(gone).as_secs_f64());
            }
        }
        let forest = self.server.forest();
        let (mut sum, mut count, mut deepest) = (0, 0, 0);
        for slice in 0..forest.slices() {
            let mut todo = vec![(SERVER, 0)];
            while let Some((peer, depth)) = todo.pop() {
                let below = forest.tree(slice).children(peer);
                (sum, count, deepest) =
                    (sum + below.len() * (depth + 1), count + below.len(), deepest.max(depth));
                todo.extend(below.iter().map(|child| (*child, depth + 1)));
            }
        }
        self.report.seconds.push(Second {
            viewers: forest.members().len(),
            depth: sum as f64 / count.max(1) as f64,
            deepest,
            orphans: forest.orphans(),
            active: self.server.source().active(),
        });
    }

    /// The whole.
    pub(super) fn finish(mut self) -> Report {
        let mut report = std::mem::take(&mut self.report);
        let young = (LAST + self.plan.skip_after).0 / self.plan.rate.span_for(PAYLOAD as u64).0;
        let forest = self.server.forest();
        for node in &self.nodes {
            let viewer = &node.viewer;
            let last = node.last.unwrap_or(self.server.source().sent());
            let sent = node.first.map_or(0, |first| last.saturating_sub(first + young));
            let packets = viewer.packets();
            report.viewers.push(Watched {
                delivered: node.delivered,
                expected: sent.max(packets.gaps + packets.delivered.min(node.delivered)),
                gaps: packets.gaps,
                duplicates: packets.duplicates,
                recovered: packets.recovered,
                start_up: viewer.counts().start_up,
                refused: match viewer.phase() {
                    Phase::Refused(refusal) => Some(refusal.clone()),
                    _ => None,
                },
                outages: viewer.counts().outages.iter().copied().collect(),
                lags: viewer.lags().clone(),
                killed: matches!(node.plan.goes, Some((_, Exit::Killed))),
                children: if node.peer == NOBODY || node.gone.is_some() {
                    0
                } else {
                    forest.load(node.peer).1
                },
            });
            report.digest = mix(report.digest ^ node.check ^ node.delivered);
        }
        let (mut latency, mut count) = (0, 0);
        for slice in 0..forest.slices() {
            let tree = forest.tree(slice);
            for peer in forest.members().iter().filter(|peer| tree.parent(**peer) != NOBODY) {
                report.edges.push((slice, tree.parent(*peer), *peer));
                (latency, count) = (latency + tree.delay(*peer), count + 1);
            }
        }
        report.tree_latency = latency as f64 / f64::from(count.max(1));
        report.edges.sort_unstable();
        report.server = self.server.counters;
        report.doubted = self.server.doubted();
        report.events = self.queue.popped();
        report
    }
}
