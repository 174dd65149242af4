//! The roles' configuration files, with a word on keys that have new names.

use std::path::Path;

use tidegate_lab::input::InputError;
use tidegate_net::flashflow::config::{
    BackgroundConfig, ConfigError, CoordinatorConfig, MeasurerConfig, RelayConfig,
};

use crate::console::notice;
use crate::failure::Failure;

fn read<T>(loaded: Result<T, ConfigError>, notices: impl Fn(&T) -> &[String]) -> Result<T, Failure> {
    let config =
        loaded.map_err(|error| InputError::new(error.path.display().to_string(), error.cause, ""))?;
    notices(&config).iter().for_each(|text| notice(text));
    Ok(config)
}

/// A relay's.
pub fn relay_config(path: &Path) -> Result<RelayConfig, Failure> {
    read(RelayConfig::load(path), |config| &config.notices)
}

/// A measurer's.
pub fn measurer_config(path: &Path) -> Result<MeasurerConfig, Failure> {
    read(MeasurerConfig::load(path), |config| &config.notices)
}

/// A coordinator's.
pub fn coordinator_config(path: &Path) -> Result<CoordinatorConfig, Failure> {
    read(CoordinatorConfig::load(path), |config| &config.notices)
}

/// That of traffic through a relay.
pub fn background_config(path: &Path) -> Result<BackgroundConfig, Failure> {
    read(BackgroundConfig::load(path), |config| &config.notices)
}
