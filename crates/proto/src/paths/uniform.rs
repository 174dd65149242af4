//! Equal weights for all relays that may take a position.

use tidegate_control::positions::Class;

use super::policy::{Candidates, Directory, Policy};

/// Draws guards from relays with the Guard flag, exits from those with the Exit flag, and middles from all relays.
#[derive(Clone, Copy, Debug)]
pub struct Uniform;

impl Policy for Uniform {
    fn candidates(&self, directory: &Directory) -> Candidates {
        let of = |classes: &[Class]| {
            let fit = directory.relays.iter().filter(|relay| classes.contains(&relay.class));
            fit.map(|relay| (relay.id, 1.0)).collect()
        };
        Candidates {
            guards: of(&[Class::Guard, Class::GuardExit]),
            middles: of(&Class::ALL),
            exits: of(&[Class::Exit, Class::GuardExit]),
        }
    }
}
