//! Time per cell of a hop's layers at a relay: AES-CTR with SHA-1, and Counter Galois Onion. Compare both within one run.
//! And the time of a relay's answer to a circuit's handshake (ntor-v3), for `all-handshakes-per-second`.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tidegate_proto::cell::{Message, Payload, RelayId, StreamId};
use tidegate_proto::crypto::layer::Body;
use tidegate_proto::crypto::ntor::RelaySecret;
use tidegate_proto::crypto::{Encrypted, Hop, OwnKeys, Wishes};
use tidegate_proto::onion::Onion as _;

/// Cells that are prepared before a measured stretch.
const CELLS: u64 = 512;

/// A client and a relay that it knows.
fn ends(cgo: bool) -> (Encrypted, Encrypted) {
    let mut relay = Encrypted::new(None, BTreeMap::new(), [1; 32]);
    relay.answer_with(OwnKeys::new([2; 20], [3; 32], [4; 32], None));
    let mut client = Encrypted::new(None, BTreeMap::new(), [5; 32]);
    let wishes = Wishes { congestion_control: true, cgo };
    client.learn(RelayId(0), *RelaySecret::new([2; 20], [4; 32]).public(), Some(([3; 32], wishes)));
    (client, relay)
}

/// A client's and a relay's end of a hop.
fn hop(cgo: bool) -> (Vec<Hop>, Hop) {
    let (mut client, mut relay) = ends(cgo);
    let (handshake, create) = client.start(RelayId(0));
    let (theirs, created) = relay.accept(&create, false).expect("the relay's keys");
    (vec![client.finish(handshake, &created).expect("the relay's keys")], theirs)
}

fn data(hop: &Hop) -> Message<Encrypted> {
    let bytes = Encrypted::terms(hop).data_bytes;
    Message { stream: StreamId(1), payload: Payload::Data(bytes, vec![7; bytes.into()].into()) }
}

/// Measures `act` on cells that `prepare` makes in order.
fn in_order<T>(iterations: u64, mut prepare: impl FnMut() -> T, mut act: impl FnMut(T)) -> Duration {
    let (mut left, mut total) = (iterations, Duration::ZERO);
    while left > 0 {
        let cells: Vec<T> = (0..left.min(CELLS)).map(|_| prepare()).collect();
        left -= cells.len() as u64;
        // The only clock of this crate: benchmarks measure the time of the machine.
        #[allow(clippy::disallowed_methods)]
        let begin = Instant::now();
        cells.into_iter().for_each(&mut act);
        total += begin.elapsed();
    }
    total
}

fn layers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("layers");
    group.throughput(Throughput::Elements(1));
    for (name, cgo) in [("aes-ctr-sha1", false), ("cgo", true)] {
        let mut case = |case: &str, run: &mut dyn FnMut(u64) -> Duration| {
            group.bench_function(BenchmarkId::new(case, name), |bencher| bencher.iter_custom(&mut *run));
        };
        let (_, mut relay) = hop(cgo);
        let random = Body::from(std::array::from_fn(|n| (n * n) as u8));
        case("pass away from the client", &mut |n| {
            in_order(
                n,
                || random.clone(),
                |mut body| drop(black_box(Encrypted::peel(&mut relay, false, &mut body))),
            )
        });
        case("pass to the client", &mut |n| {
            in_order(n, || random.clone(), |mut body| Encrypted::wrap(&mut relay, black_box(&mut body)))
        });
        let (mut client, mut relay) = hop(cgo);
        let message = data(&relay);
        case("receive at the exit", &mut |n| {
            let seal = || Encrypted::seal(&mut client, 0, false, message.clone());
            in_order(n, seal, |mut body| drop(black_box(Encrypted::peel(&mut relay, false, &mut body))))
        });
        let (_, mut relay) = hop(cgo);
        case("send at the exit", &mut |n| {
            in_order(
                n,
                || message.clone(),
                |message| drop(black_box(Encrypted::originate(&mut relay, message))),
            )
        });
    }
}

/// A relay answers a client's handshake.
fn handshake(criterion: &mut Criterion) {
    let (mut client, mut relay) = ends(true);
    let (_, create) = client.start(RelayId(0));
    criterion.bench_function("answer a handshake", |bencher| {
        bencher.iter(|| relay.accept(black_box(&create), false))
    });
}

criterion_group!(benches, layers, handshake);
criterion_main!(benches);
