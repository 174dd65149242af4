//! Integration tests of this crate: one binary, so that the crate is linked once.

mod balance;
mod combinations;
mod divided;
mod endless;
mod flashflow;
mod parallel;
mod parallel_streams;
mod predictor;
mod predictor_byzantine;
mod quic;
mod second_leg;
mod stream;
mod world;
