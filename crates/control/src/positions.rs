//! Bandwidth weights: the share of each class of relays per position (dir-spec, "Computing bandwidth weights").

/// A relay's class, which decides how its bandwidth is shared among positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Neither guard nor exit.
    Middle,
    /// Guard only.
    Guard,
    /// Exit only.
    Exit,
    /// Both.
    GuardExit,
}

impl Class {
    /// All classes.
    pub const ALL: [Class; 4] = [Class::Middle, Class::Guard, Class::Exit, Class::GuardExit];
}

/// Position weights in parts of `scale`: `gd` is `Wgd`, the weight of a guard-and-exit (`d`) in the guard
/// position (`g`).
#[expect(missing_docs, reason = "the fields are named as in dir-spec")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PositionWeights {
    pub scale: i64,
    pub gg: i64,
    pub gd: i64,
    pub mg: i64,
    pub mm: i64,
    pub me: i64,
    pub md: i64,
    pub eg: i64,
    pub em: i64,
    pub ee: i64,
    pub ed: i64,
}

/// Sums of bandwidth by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    g: i64,
    m: i64,
    e: i64,
    d: i64,
}

impl Totals {
    fn add(&mut self, class: Class, weight: i64) {
        let total = match class {
            Class::Guard => &mut self.g,
            Class::Middle => &mut self.m,
            Class::Exit => &mut self.e,
            Class::GuardExit => &mut self.d,
        };
        *total += weight;
    }
}

impl PositionWeights {
    /// The weights that authorities compute for relays of these classes and weights, in ten-thousandths.
    pub fn balancing(relays: impl IntoIterator<Item = (Class, f64)>) -> PositionWeights {
        PositionWeights::computed(relays.into_iter().map(|(class, weight)| (class, weight as i64)), 1, 10_000)
    }

    /// The same in parts of `scale`, with sums that begin at `first` (tor: 1 since consensus method 31, 0
    /// before).
    pub fn computed(
        relays: impl IntoIterator<Item = (Class, i64)>,
        first: i64,
        scale: i64,
    ) -> PositionWeights {
        let mut totals = Totals { g: first, m: first, e: first, d: first };
        relays.into_iter().for_each(|(class, weight)| totals.add(class, weight));
        compute(totals, scale)
    }

    /// The weight of a class in the guard position, in parts of `scale`.
    pub fn guard(&self, class: Class) -> i64 {
        match class {
            Class::Guard => self.gg,
            Class::GuardExit => self.gd,
            Class::Middle | Class::Exit => 0,
        }
    }

    /// The weight of a class in the middle position.
    pub fn middle(&self, class: Class) -> i64 {
        match class {
            Class::Middle => self.mm,
            Class::Guard => self.mg,
            Class::Exit => self.me,
            Class::GuardExit => self.md,
        }
    }

    /// The weight of a class in the exit position.
    pub fn exit(&self, class: Class) -> i64 {
        match class {
            Class::Exit => self.ee,
            Class::GuardExit => self.ed,
            Class::Middle | Class::Guard => 0,
        }
    }
}

/// The cases of dir-spec, in tor's integers. A class without bandwidth counts as one.
fn compute(totals: Totals, scale: i64) -> PositionWeights {
    let Totals { g, m, e, d } =
        Totals { g: totals.g.max(1), m: totals.m.max(1), e: totals.e.max(1), d: totals.d.max(1) };
    let third = (g + m + e + d) / 3;
    let share = |part: i64, of: i64| scale * part / of;
    let mut w = PositionWeights { scale, mm: scale, ..PositionWeights::default() };
    if e >= third && g >= third {
        // Neither is scarce.
        (w.gd, w.ed, w.md) = (scale / 3, scale / 3, scale / 3);
        w.ee = share(e + g + m, 3 * e);
        w.mg = share(2 * g - e - m, 3 * g);
        (w.me, w.gg) = (scale - w.ee, scale - w.mg);
    } else if e < third && g < third {
        // Both are scarce.
        if e.min(g) + d < e.max(g) {
            (w.gg, w.ee) = (scale, scale);
            (w.gd, w.ed) = if e < g { (0, scale) } else { (scale, 0) };
        } else {
            w.ee = share(e - g + m, e);
            w.ed = share(d - 2 * e + 4 * g - 2 * m, 3 * d);
            w.me = share(g - m, e);
            w.gg = scale;
            (w.md, w.gd) = ((scale - w.ed) / 2, (scale - w.ed) / 2);
            if ![w.ee, w.ed, w.me, w.md, w.gd].iter().all(|weight| (0..=scale).contains(weight)) {
                (w.gg, w.ee, w.me, w.mg) = (scale, scale, 0, 0);
                w.ed = share(d - 2 * e + g + m, 3 * d);
                w.md = share(d - 2 * m + g + e, 3 * d).max(0);
                w.gd = scale - w.ed - w.md;
            }
        }
    } else if e.min(g) + d < third {
        // One is scarce, even with all relays that can do both.
        let kept = |plenty: i64| if plenty < m { 0 } else { share(plenty - m, 2 * plenty) };
        if g < e {
            (w.gg, w.gd, w.me) = (scale, scale, kept(e));
            w.ee = scale - w.me;
        } else {
            (w.ee, w.ed, w.mg) = (scale, scale, kept(g));
            w.gg = scale - w.mg;
        }
    } else if g < e {
        w.gg = scale;
        w.gd = share(d - 2 * g + e + m, 3 * d);
        w.ee = share(e + m, 2 * e);
        w.me = scale - w.ee;
        (w.md, w.ed) = ((scale - w.gd) / 2, (scale - w.gd) / 2);
    } else {
        w.ee = scale;
        w.ed = share(d - 2 * e + g + m, 3 * d);
        w.gg = share(g + m, 2 * g);
        w.mg = scale - w.gg;
        (w.md, w.gd) = ((scale - w.ed) / 2, (scale - w.ed) / 2);
    }
    (w.eg, w.em) = (w.ed, w.ee);
    w
}

#[cfg(test)]
mod tests {
    use super::*;

    fn balanced(g: i64, m: i64, e: i64, d: i64) -> PositionWeights {
        let w = compute(Totals { g, m, e, d }, 10_000);
        for weight in [w.gg, w.gd, w.mg, w.mm, w.me, w.md, w.ee, w.ed] {
            assert!((0..=10_000).contains(&weight), "{w:?}");
        }
        // No bandwidth is lost: each class is shared out in full (to rounding).
        for sum in [w.gg + w.mg, w.gd + w.md + w.ed, w.me + w.ee] {
            assert!((sum - 10_000).abs() <= 2, "{w:?}");
        }
        w
    }

    /// Bandwidth that ends up in the three positions.
    fn positions(w: &PositionWeights, g: i64, m: i64, e: i64, d: i64) -> [f64; 3] {
        let of = |parts: &[(i64, i64)]| parts.iter().map(|(w, b)| *w as f64 / 1e4 * *b as f64).sum::<f64>();
        [
            of(&[(w.gg, g), (w.gd, d)]),
            of(&[(w.mg, g), (w.mm, m), (w.me, e), (w.md, d)]),
            of(&[(w.ee, e), (w.ed, d)]),
        ]
    }

    #[test]
    fn weights_balance_the_positions_where_that_is_possible() {
        for (g, m, e, d) in [
            (400_000, 100_000, 400_000, 100_000), // neither scarce
            (200_000, 150_000, 200_000, 450_000), // both scarce, enough of both
            (500_000, 100_000, 150_000, 250_000), // exits scarce, enough of both
            (150_000, 100_000, 500_000, 250_000), // guards scarce, enough of both
        ] {
            let w = balanced(g, m, e, d);
            let third = (g + m + e + d) as f64 / 3.0;
            for position in positions(&w, g, m, e, d) {
                assert!((position / third - 1.0).abs() < 0.01, "{w:?}: {position} of {third}");
            }
        }
    }

    #[test]
    fn scarce_bandwidth_is_kept_in_its_position() {
        let w = balanced(700_000, 100_000, 100_000, 100_000);
        assert_eq!((w.ee, w.ed, w.gd), (10_000, 10_000, 0), "exits are scarce");
        let w = balanced(100_000, 100_000, 700_000, 100_000);
        assert_eq!((w.gg, w.gd, w.ed), (10_000, 10_000, 0), "guards are scarce");
        let w = balanced(100, 900_000, 50_000, 100);
        assert_eq!((w.gg, w.ee), (10_000, 10_000), "both are scarce");
        balanced(0, 0, 0, 0);
        balanced(1 << 45, 1, 1, 1);
    }
}
