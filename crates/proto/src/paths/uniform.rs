//! Every relay alike, wherever its class lets it stand.

use tidegate_control::positions::Class;

use super::policy::{Candidates, Directory, Policy};

/// Guards among those that may be guards, exits among those that may be exits, middles among all.
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
