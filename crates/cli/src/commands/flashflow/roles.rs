//! FlashFlow's roles as processes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::json;
use tidegate_control::units::{Rate, Span};
use tidegate_lab::input::InputError;
use tidegate_net::clock;
use tidegate_net::flashflow::measurer::MeasurerOptions;
use tidegate_net::flashflow::{
    BackgroundConfig, CapacityConfig, CoordinatorConfig, Daemon, DaemonError, Limits, MeasuredRelay,
    MeasurerConfig, RelayConfig, background, capacity, measurer, status,
};
use tidegate_net::identity::Identity;
use tokio::net::UdpSocket;

use crate::failure::Failure;
use crate::roles::{cannot_listen, listen, on_this_thread};

/// The way in which a relay lies about its capacity.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Liar {
    /// Hold cells back in just under half of the seconds and claim background that does not exist
    Hold,
}

/// Runs a relay that can be measured.
pub fn relay(config: &RelayConfig, liar: Option<Liar>) -> Result<(), Failure> {
    let identity = Arc::new(Identity::load(&config.identity).map_err(Failure::other)?);
    let (measurement, neighbours) = (config.measurement.clone(), config.neighbours());
    let relay = MeasuredRelay::new(identity, config.rate, measurement, Limits::default(), neighbours)
        .map_err(Failure::other)?;
    if let Some(Liar::Hold) = liar {
        relay.hold_back(config.rate);
    }
    on_this_thread(async {
        let listener = listen(config.listen).await?;
        let report = async {
            let (mut before, mut was_idle, mut connected) = (relay.forwarded(), false, 0);
            let mut next = clock::now();
            loop {
                next += Span::from_secs(1);
                clock::until(next).await;
                let now = relay.forwarded();
                let connections = relay.connections();
                let idle = now == before && !relay.is_busy() && connections == connected;
                // The first idle second is reported too: it marks the end of the load.
                if !(idle && was_idle) {
                    tracing::info!(
                        measurement_bits_per_s = (now.measurement - before.measurement) * 8,
                        background_bits_per_s = (now.background - before.background) * 8,
                        connections,
                        measured = relay.is_busy(),
                        "second"
                    );
                }
                (was_idle, connected) = (idle, connections);
                before = now;
            }
        };
        tokio::select! {
            () = relay.clone().serve(listener) => {}
            () = report => {}
        }
        Ok(())
    })
    .map(drop)
}

/// Runs a measurer.
pub fn measurer(config: MeasurerConfig) -> Result<(), Failure> {
    let identity = Arc::new(Identity::load(&config.identity).map_err(Failure::other)?);
    on_this_thread(async {
        let listener = listen(config.listen).await?;
        let MeasurerConfig { coordinators, workers, rate: Rate(rate), capacity, .. } = config;
        let options = MeasurerOptions { coordinators, workers, rate };
        let probes = async {
            match &capacity {
                Some(CapacityConfig { listen, peers }) => {
                    let socket = UdpSocket::bind(listen).await;
                    let socket = socket.map_err(|cause| cannot_listen(format!("{listen} (UDP)"), &cause))?;
                    capacity::serve(socket, &identity, peers, rate).await.map_err(Failure::other)
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            result = measurer::serve(listener, identity.clone(), options) => result.map_err(Failure::other),
            result = probes => result,
        }
    })
    .map(drop)
}

/// Measures how much a measurer can send and receive.
pub fn measurer_capacity(config: &MeasurerConfig, rate: Rate, span: Span, json: bool) -> Result<(), Failure> {
    let Some(CapacityConfig { listen, peers }) = &config.capacity else {
        let cause = "the configuration has no [capacity]";
        let cure = "add it with the address and the fingerprint of each other measurer";
        return Err(Failure::Input(InputError::new("--config", cause, cure)));
    };
    let seconds = span.whole_secs().filter(|seconds| (1..=capacity::MAX_SECONDS).contains(seconds));
    let Some(seconds) = seconds.filter(|_| rate.0 > 0) else {
        let cure = "give a rate above zero and a duration of 1 s to 120 s in whole seconds";
        return Err(Failure::Input(InputError::new("--rate, --duration", "out of range", cure)));
    };
    let identity = Identity::load(&config.identity).map_err(Failure::other)?;
    // The measurer itself may hold the port. The other measurers identify us by our key, not by address.
    let ours = SocketAddr::new(listen.ip(), 0);
    let rate = rate.min(config.rate);
    let capacity = on_this_thread(async {
        let socket = UdpSocket::bind(ours).await.map_err(Failure::other)?;
        capacity::probe(socket, &identity, peers, rate, seconds).await.map_err(Failure::other)
    })?;
    let Some(capacity) = capacity else { return Ok(()) };
    if json {
        let bits = |(received, sent): &(u64, u64)| json!({ "received": received * 8, "sent": sent * 8 });
        println!(
            "{}",
            json!({ "capacity_bits_per_s": capacity.rate.0, "incomplete_seconds": capacity.incomplete,
                "per_second_bits": capacity.seconds.iter().map(bits).collect::<Vec<_>>() })
        );
    } else {
        let (whole, lost) = (capacity.seconds.len(), capacity.incomplete);
        println!("# {whole} seconds with {} other measurers, {lost} incomplete", peers.len());
        println!("capacity = \"{}\"", capacity.rate);
    }
    Ok(())
}

/// Sends clients' traffic through a relay.
pub fn background(config: &BackgroundConfig) -> Result<(), Failure> {
    let identity = Arc::new(Identity::load(&config.identity).map_err(Failure::other)?);
    on_this_thread(async {
        let listener = listen(config.listen).await?;
        let delivered = Rc::new(Cell::new(0));
        let report = async {
            let (mut next, mut was_idle) = (clock::now(), false);
            loop {
                next += Span::from_secs(1);
                clock::until(next).await;
                let bytes = delivered.take();
                // The first idle second is reported too: it marks the end of the load.
                if !(bytes == 0 && was_idle) {
                    tracing::info!(delivered_bits_per_s = bytes * 8, "second");
                }
                was_idle = bytes == 0;
            }
        };
        let (target, circuits, rate) = (config.target(), config.circuits, config.rate);
        tokio::select! {
            result = background::run(listener, identity, target, circuits, rate, delivered.clone()) => {
                result.map_err(Failure::other)
            }
            () = report => Ok(()),
        }
    })
    .map(drop)
}

/// Follows the schedule until stopped, or measures every relay once.
pub fn coordinator(config: CoordinatorConfig, once: bool) -> Result<(), Failure> {
    on_this_thread(async {
        let address = config.status;
        let daemon = Daemon::open(config).map_err(|error| match error {
            DaemonError::Network(cause) => Failure::Input(cause.into()),
            other => Failure::other(other),
        })?;
        let status = async {
            match address {
                Some(address) => status::serve(address, daemon.shared()).await.map_err(|cause| {
                    Failure::other(format!("the status page cannot be served on {address}: {cause}"))
                }),
                None => std::future::pending().await,
            }
        };
        let work = async {
            // With `--once` the exit code tells scripts whether all relays were measured.
            if !once {
                return daemon.run().await.map_err(Failure::other);
            }
            match daemon.run_once().await.map_err(Failure::other)?.as_slice() {
                [] => Ok(()),
                missing => Err(Failure::other(format!("no complete measurement of {}", missing.join(", ")))),
            }
        };
        tokio::select! {
            result = work => result,
            result = status => result,
        }
    })
    .map(drop)
}
