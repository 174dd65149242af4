//! A relay under PredicTor ([`crate::flow::predictor`]): measures its circuits, acts on the controller's plans,
//! and tells neighbours.

use tidegate_control::predictor::Problem;
use tidegate_control::units::Time;

use super::Relay;
use crate::cell::CircId;
use crate::flow::predictor::wire::{self, About, Heard};
use crate::flow::predictor::{Controller, Due, Exchange, Measured, Parameters, Source, Totals};
use crate::links::{ChannelId, Side};
use crate::node::CircuitKey;
use crate::onion::Onion;

impl<O: Onion> Relay<O> {
    /// What the controller has done, if there is one.
    pub fn control_totals(&self) -> Option<Totals> {
        self.controller.as_ref().map(|controller| controller.totals())
    }

    /// When the controller has something to do.
    pub(super) fn next_step(&self) -> Option<Time> {
        self.controller.as_ref()?.next_timeout()
    }

    /// Does what the controller has to do now.
    pub(super) fn step(&mut self, now: Time) {
        let Some(due) = self.controller.as_mut().and_then(|controller| controller.due(now)) else { return };
        match due {
            Due::Begin => {}
            Due::Solve => self.solve(now),
            Due::Act => self.act(now),
            Due::Release(parts) => {
                self.links.release(now);
                self.release_later(now, parts - 1);
            }
        }
    }

    fn release_later(&mut self, now: Time, parts: u32) {
        if let Some(controller) = &mut self.controller {
            controller.release_later(now, parts);
        }
    }

    /// Measures all circuits and solves for those that have anything to send or to expect.
    fn solve(&mut self, now: Time) {
        let Some(controller) = self.controller.as_deref_mut() else { return };
        controller.begin();
        for (key, circuit) in &mut self.circuits {
            let source = match (circuit.edge.as_deref_mut(), circuit.next) {
                (Some(edge), _) => Source::Server(edge.demand()),
                (None, Some(_)) => Source::Relay,
                (None, None) => Source::Server(0.0),
            };
            controller.add(
                now,
                &Measured {
                    circuit: CircuitKey(key as u32),
                    queue: self.links.backlog(circuit.prev),
                    source,
                    to_client: !self.links.is_to_relay(circuit.prev),
                },
            );
        }
        let circuits = controller.solve();
        if controller.solved(now, circuits) {
            self.act(now);
        }
    }

    /// Acts on the plans of the last solve: tells the neighbours, then sets how much each circuit may send and
    /// take in this step.
    fn act(&mut self, now: Time) {
        let Some(mut controller) = self.controller.take() else { return };
        // Messages leave before the cells that this step lets go.
        self.tell(now, &mut controller);
        let Parameters { step, carry, parts, tell_source, local_ends, .. } = *controller.parameters();
        let dt = step.as_secs_f64();
        let mut row = 0;
        for (key, circuit) in &mut self.circuits {
            let plan = controller.next_plan(&mut row, CircuitKey(key as u32));
            // A circuit that was idle may send a cell at once when one comes.
            let (send, share, take) = plan.map_or((1.0, 0.0, 1.0), |plan| {
                if local_ends && !self.links.is_to_relay(circuit.prev) {
                    return (f64::INFINITY, 0.0, f64::INFINITY);
                }
                let send = plan.output[0] * dt;
                // What comes from relays is spread already.
                let share = if circuit.edge.is_some() { send / f64::from(parts) } else { send };
                let take = if local_ends { f64::INFINITY } else { plan.intake[0] * dt };
                (share, if share < send { share } else { 0.0 }, take)
            });
            let waiting = f64::from(self.links.backlog(circuit.prev));
            self.links.allow(now, circuit.prev, send, share, carry);
            if let Some(edge) = circuit.edge.as_deref_mut() {
                // What waits at the server need not wait here.
                let needed = (plan.map_or(1.0, |plan| 2.0 * plan.output[0] * dt + 1.0) - waiting).max(0.0);
                edge.allow(if tell_source || local_ends { take.min(needed) } else { take }, carry);
            }
        }
        for row in 0.. {
            let Some(plan) = controller.plan(row) else { break };
            if self.circuits.contains(plan.circuit.0 as usize) {
                self.resume(plan.circuit);
            }
        }
        self.controller = Some(controller);
        self.release_later(now, parts - 1);
    }

    /// Tells the neighbours of every circuit: the predecessor what we take, the successor what we send.
    fn tell(&mut self, now: Time, controller: &mut Controller) {
        const IDLE: [f64; Problem::MAX_HORIZON] = [0.0; Problem::MAX_HORIZON];
        let Parameters { step, horizon, exchange, .. } = *controller.parameters();
        let out_of_band = exchange == Exchange::OutOfBand;
        let idle = &IDLE[..horizon];
        let mut telling = controller.take_telling();
        let (mut row, mut sent) = (0, 0);
        for (key, circuit) in &self.circuits {
            let key = CircuitKey(key as u32);
            let flows = controller.next_plan(&mut row, key).is_some();
            if !controller.must_tell(key, flows) {
                continue;
            }
            let plan = if flows { controller.plan(row - 1) } else { None };
            let [intake, output, queue, unhindered] = plan.map_or([idle, idle, idle, &[]], |plan| {
                [plan.intake, plan.output, plan.queue, plan.unhindered]
            });
            let prev = Some(circuit.prev).filter(|prev| self.links.is_to_relay(*prev));
            let about = [
                (circuit.next, About::Intake, intake),
                (prev, About::Output, output),
                (prev, About::Queue, queue),
                (prev, About::Virtual, unhindered),
            ];
            let flow = output.iter().fold(0.0, |most: f64, rate| most.max(*rate)) * step.as_secs_f64();
            let mut last = None;
            for (leg, about, values) in about {
                let Some(leg) = leg.filter(|_| !values.is_empty()) else { continue };
                let Some(bytes) = telling.prepare(now, key, (about, flow), values) else { continue };
                sent += self.links.tell(now, leg, bytes, out_of_band, |circ, out| {
                    let trajectory = Heard { circ: circ.0, about, solved: now, step, values };
                    telling.write(&trajectory, last == Some(leg), out);
                });
                last = Some(leg);
            }
        }
        sent += self.links.send_told(now, out_of_band);
        controller.return_telling(telling);
        controller.count_bytes(true, sent);
    }

    /// A neighbour tells what it plans.
    pub(super) fn hear(&mut self, now: Time, channel: ChannelId, body: O::Body) {
        let links = &mut self.links;
        if let Some(controller) = &mut self.controller {
            let bytes = O::bare(&body);
            let agreed = (now, controller.parameters().step);
            let refused = controller.totals().refused;
            let mut values = controller.take_values();
            let read = wire::read(bytes, agreed, &mut values, |heard| {
                match links.circuit_of(channel, CircId(heard.circ)) {
                    Some((circuit, side)) => controller.hear(now, circuit, side == Side::Next, heard),
                    None => controller.refuse(),
                }
            });
            if read.is_err() {
                controller.refuse();
            }
            if controller.totals().refused == refused {
                controller.count_bytes(false, bytes.len() as u64);
            }
            controller.return_values(values);
        }
        links.recycle(O::recycle(body));
    }
}
