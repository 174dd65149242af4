//! Delays between places: the common form of all latency data sets.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidegate_control::units::{Rate, Span};

use crate::country::Country;
use crate::document::{DataError, Document, quote};

/// Maximum number of locations, which bounds the memory for their pairs.
pub(crate) const MAX_LOCATIONS: usize = 4096;

/// Locations, and paths between all of them.
#[derive(Clone, Debug)]
pub struct LatencyTable {
    /// The places, in the order of the file.
    pub locations: Vec<Location>,
    /// Number of ordered pairs that `LatencyTable::complete` filled.
    pub completed: usize,
    paths: Vec<Path>,
}

/// A possible location of hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Location {
    /// Its name in the file, unique.
    pub name: String,
    /// Its country, if known.
    pub country: Option<Country>,
    /// Its city or region.
    pub city: Option<String>,
    /// Access bandwidth from hosts there, if known.
    pub up: Option<Rate>,
    /// Access bandwidth to hosts there, if known.
    pub down: Option<Rate>,
}

/// The Internet between two locations, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Path {
    /// Propagation and standing queues.
    pub delay: Span,
    /// Standard deviation of the delay over time.
    pub jitter: Span,
    /// Loss probability, in `[0, 1]`.
    pub loss: f64,
}

impl Path {
    /// Concatenates two paths. Delays add; jitters and losses combine as independent.
    fn then(self, next: Path) -> Path {
        let (a, b) = (self.jitter.as_secs_f64(), next.jitter.as_secs_f64());
        Path {
            delay: self.delay + next.delay,
            jitter: Span::from_secs_f64(libm::sqrt(a * a + b * b)),
            loss: 1.0 - (1.0 - self.loss) * (1.0 - next.loss),
        }
    }
}

/// Which measured paths a completed table keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Routing {
    /// None: every path is the shortest over known paths (Shadow's `use_shortest_path: true`).
    Shortest,
    /// All: only missing paths are the shortest over known ones.
    Direct,
}

impl LatencyTable {
    /// The path between two locations, by index.
    ///
    /// # Panics
    /// If an index is out of range.
    pub fn path(&self, from: usize, to: usize) -> &Path {
        let n = self.locations.len();
        assert!(from < n && to < n, "no such location");
        &self.paths[from * n + to]
    }

    /// Adds the loss of each location's hosts to the paths to and from other locations.
    pub(crate) fn lose_at_ends(&mut self, losses: &[f64]) {
        let n = self.locations.len();
        for (cell, path) in self.paths.iter_mut().enumerate() {
            let (from, to) = (losses[cell / n], losses[cell % n]);
            if cell / n != cell % n && (from > 0.0 || to > 0.0) {
                path.loss = 1.0 - (1.0 - path.loss) * (1.0 - from) * (1.0 - to);
            }
        }
    }

    /// The possible locations of hosts in a country.
    ///
    /// These are the locations in it, or else in the nearest country that has some. If countries are unknown, these
    /// are all locations.
    pub fn in_or_near(&self, country: Country) -> Vec<usize> {
        let countries = || self.locations.iter().filter_map(|location| location.country);
        let nearest = countries().min_by(|a, b| country.distance_km(*a).total_cmp(&country.distance_km(*b)));
        let suits = |location: &Location| nearest.is_none() || location.country == nearest;
        (0..self.locations.len()).filter(|at| suits(&self.locations[*at])).collect()
    }

    /// Completes a partly known table (`known[from * n + to]`).
    ///
    /// A missing path between two locations becomes the shortest over known paths, as with Shadow's
    /// `use_shortest_path`. A missing path from a location to itself gets half of its least delay to another
    /// location, without jitter and loss, since hosts in one place are nearer to each other than to the next place.
    ///
    /// # Errors
    /// If there are too many locations, names repeat, or known paths do not connect two locations.
    pub(crate) fn complete(
        document: &Document,
        locations: Vec<Location>,
        mut known: Vec<Option<Path>>,
        routing: Routing,
    ) -> Result<LatencyTable, DataError> {
        let n = locations.len();
        assert_eq!(known.len(), n * n, "a square table");
        check_size(document, n)?;
        let mut names: Vec<&str> = locations.iter().map(|location| location.name.as_str()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let cause = format!("location {} repeats", quote(pair[0]));
            return Err(document.error(cause, "give every location a unique name"));
        }
        let missing = known.iter().filter(|path| path.is_none()).count();
        let neighbours = |from: usize| {
            let row = &known[from * n..(from + 1) * n];
            row.iter()
                .enumerate()
                .filter(move |(to, _)| *to != from)
                .filter_map(|(to, path)| Some((to, (*path)?)))
        };
        // Copied before the loop, which overwrites the measured paths.
        let adjacent: Vec<Vec<(usize, Path)>> = (0..n).map(|from| neighbours(from).collect()).collect();
        for from in 0..n {
            let row = from * n..(from + 1) * n;
            let others = |to: &usize| *to != from;
            let needed = (0..n).filter(others).any(|to| known[row.start + to].is_none());
            if needed || routing == Routing::Shortest {
                let shortest = shortest_paths(&adjacent, from);
                for to in (0..n).filter(others) {
                    let Some(path) = shortest[to] else {
                        let (a, b) = (quote(&locations[from].name), quote(&locations[to].name));
                        let cause = format!("{b} is unreachable from {a}");
                        return Err(document.error(cause, "add the missing edges or measurements"));
                    };
                    let cell = &mut known[row.start + to];
                    if cell.is_none() || routing == Routing::Shortest {
                        *cell = Some(path);
                    }
                }
            }
            if known[row.start + from].is_none() {
                let nearest =
                    (0..n).filter(others).filter_map(|to| known[row.start + to]).map(|p| p.delay).min();
                let Some(nearest) = nearest else {
                    let cause = format!(
                        "the only location, {}, lacks a path to itself",
                        quote(&locations[from].name)
                    );
                    return Err(document.error(cause, "add an edge from it to itself"));
                };
                known[row.start + from] = Some(Path { delay: nearest / 2, ..Path::default() });
            }
        }
        let paths = known.into_iter().map(|path| path.expect("every pair was completed")).collect();
        Ok(LatencyTable { locations, completed: missing, paths })
    }
}

/// Refuses tables with zero locations or above [`MAX_LOCATIONS`].
pub(crate) fn check_size(document: &Document, locations: usize) -> Result<(), DataError> {
    if locations == 0 {
        return Err(document.error("does not hold any location", "give a table with locations"));
    }
    if locations > MAX_LOCATIONS {
        let cause = format!("holds {locations} locations, more than {MAX_LOCATIONS}");
        return Err(document.error(cause, "give a smaller table"));
    }
    Ok(())
}

/// Dijkstra's algorithm from one location: least delay, then least loss.
fn shortest_paths(adjacent: &[Vec<(usize, Path)>], from: usize) -> Vec<Option<Path>> {
    // Probabilities are not negative, so their bits have the same order.
    let cost = |path: &Path| (path.delay, path.loss.to_bits());
    let mut best: Vec<Option<Path>> = vec![None; adjacent.len()];
    let mut done = vec![false; adjacent.len()];
    best[from] = Some(Path::default());
    let mut queue = BinaryHeap::from([Reverse((cost(&Path::default()), from))]);
    while let Some(Reverse((_, at))) = queue.pop() {
        if std::mem::replace(&mut done[at], true) {
            continue;
        }
        let here = best[at].expect("what is queued has a path");
        for (to, step) in &adjacent[at] {
            let path = here.then(*step);
            if !done[*to] && best[*to].is_none_or(|known| cost(&path) < cost(&known)) {
                best[*to] = Some(path);
                queue.push(Reverse((cost(&path), *to)));
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Document {
        Document::new("table", "x").unwrap()
    }

    fn places(names: &[&str]) -> Vec<Location> {
        let place = |name: &&str| Location {
            name: name.to_string(),
            country: Country::from_code(name),
            city: None,
            up: None,
            down: None,
        };
        names.iter().map(place).collect()
    }

    fn ms(delay: u64, jitter: u64, loss: f64) -> Option<Path> {
        Some(Path { delay: Span::from_millis(delay), jitter: Span::from_millis(jitter), loss })
    }

    /// DE -10- FR -5- ES, and a direct DE -40- ES.
    fn triangle() -> Vec<Option<Path>> {
        let (a, b, c) = (ms(10, 3, 0.1), ms(5, 4, 0.1), ms(40, 0, 0.0));
        vec![None, a, c, a, ms(1, 0, 0.0), b, c, b, None]
    }

    #[test]
    fn missing_paths_become_the_shortest_known_ones() {
        let mut known = triangle();
        known[2] = None;
        let table =
            LatencyTable::complete(&document(), places(&["DE", "FR", "ES"]), known, Routing::Direct).unwrap();
        let filled = table.path(0, 2);
        assert_eq!((filled.delay, filled.jitter), (Span::from_millis(15), Span::from_millis(5)));
        assert!((filled.loss - 0.19).abs() < 1e-12);
        assert_eq!(table.path(2, 0).delay, Span::from_millis(40));
        assert_eq!(table.path(0, 0).delay, Span::from_millis(5), "half the way to FR");
        assert_eq!(table.path(1, 1).delay, Span::from_millis(1), "as measured");
        assert_eq!(table.completed, 3);
    }

    #[test]
    fn shortest_routing_overrides_measured_detours() {
        let table =
            LatencyTable::complete(&document(), places(&["DE", "FR", "ES"]), triangle(), Routing::Shortest)
                .unwrap();
        assert_eq!(table.path(2, 0).delay, Span::from_millis(15));
    }

    #[test]
    fn incomplete_or_ambiguous_tables_are_refused() {
        let complete = |names: &[&str], known| {
            LatencyTable::complete(&document(), places(names), known, Routing::Direct)
        };
        let error = complete(&["DE", "FR"], vec![None; 4]).unwrap_err();
        assert!(error.cause.contains("`FR` is unreachable from `DE`"), "{error}");
        assert!(complete(&["DE"], vec![None]).unwrap_err().cause.contains("itself"));
        assert!(complete(&["DE", "DE"], vec![ms(1, 0, 0.0); 4]).unwrap_err().cause.contains("repeats"));
        assert!(complete(&[], Vec::new()).is_err());
    }

    #[test]
    fn hosts_go_to_their_country_or_the_nearest() {
        let table = LatencyTable::complete(
            &document(),
            places(&["DE", "NZ", "DE2"]),
            vec![ms(1, 0, 0.0); 9],
            Routing::Direct,
        )
        .unwrap();
        let near = |code| table.in_or_near(Country::from_code(code).unwrap());
        assert_eq!((near("DE"), near("AT"), near("AU")), (vec![0], vec![0], vec![1]));
        let nameless =
            LatencyTable::complete(&document(), places(&["1", "2"]), vec![ms(1, 0, 0.0); 4], Routing::Direct)
                .unwrap();
        assert_eq!(nameless.in_or_near(Country::from_code("DE").unwrap()), [0, 1]);
    }
}
