//! How far PCTCP is deployed.

use tidegate_proto::transport::Pctcp;

/// Deployment of PCTCP (CCS 2013, section 6.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Deployment {
    /// Probability that a relay is upgraded, drawn per relay from the run's seed: with a larger share the
    /// same relays are upgraded and others besides. Clients always are.
    pub upgraded: f64,
    /// Bytes that IPsec (ESP) adds to every packet between two upgraded relays. Segments shrink by as much,
    /// so that full packets keep their size.
    pub esp_overhead: u32,
}

impl From<Pctcp> for Deployment {
    fn from(pctcp: Pctcp) -> Deployment {
        Deployment { upgraded: pctcp.upgraded, esp_overhead: pctcp.esp_overhead }
    }
}

impl Default for Deployment {
    fn default() -> Deployment {
        Pctcp::default().into()
    }
}
