//! Logs of roles on sockets: filters and formats `tracing` events, one line each on standard output.

use std::fmt::Debug;
use std::io::{IsTerminal as _, Write as _};

use serde_json::{Map, Value, json};
use tidegate_control::flashflow::bandwidth_file::iso;
use tidegate_kernel::unix_s;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Log options of roles on sockets: relays, clients, directories, measurers, coordinators.
#[derive(Clone, Copy, Debug, clap::Args)]
#[command(next_help_heading = "Logs of roles on sockets")]
pub struct Logs {
    /// Log events of this level and above: error, warn, info, debug, or off
    #[arg(long, global = true, default_value = "info", value_name = "LEVEL", value_parser = level)]
    log: LevelFilter,
    /// Choose the log format [default: text on a terminal, otherwise json]
    #[arg(long, global = true)]
    log_format: Option<Format>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// One object per line: `unix` (seconds since 1970), `level`, `event` and its fields
    Json,
    /// Time (UTC), level, event and its fields
    Text,
}

fn level(text: &str) -> Result<LevelFilter, String> {
    let known = [
        ("error", LevelFilter::ERROR),
        ("warn", LevelFilter::WARN),
        ("info", LevelFilter::INFO),
        ("debug", LevelFilter::DEBUG),
        ("off", LevelFilter::OFF),
    ];
    let found = known.into_iter().find(|(name, _)| *name == text);
    found.map(|(_, level)| level).ok_or_else(|| "give error, warn, info, debug or off".into())
}

impl Logs {
    /// Starts logging.
    pub fn start(&self) {
        let plain = if std::io::stdout().is_terminal() { Format::Text } else { Format::Json };
        let lines = LineSubscriber { max_level: self.log, format: self.log_format.unwrap_or(plain) };
        // A subscriber that is already installed stays.
        let _ = tracing::subscriber::set_global_default(lines);
    }
}

/// Writes events as lines.
struct LineSubscriber {
    max_level: LevelFilter,
    format: Format,
}

impl Subscriber for LineSubscriber {
    /// Logs only this workspace's crates: messages of libraries may contain addresses of peers.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= self.max_level
            && metadata.target().starts_with("tidegate")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.max_level)
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = event.metadata().level();
        let line = match self.format {
            Format::Json => as_json(unix_s(), &level.as_str().to_lowercase(), fields),
            Format::Text => as_text(unix_s(), level.as_str(), &fields),
        };
        // A closed standard output must not stop the role.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{line}").and_then(|()| out.flush());
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are never enabled, so the id is not used.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The name and the fields of an event.
#[derive(Default)]
struct Fields {
    event: String,
    others: Map<String, Value>,
}

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        self.others.insert(field.name().to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.event = format!("{value:?}"),
            _ => self.put(field, format!("{value:?}").into()),
        }
    }
}

fn as_json(unix: u64, level: &str, fields: Fields) -> String {
    let mut line = json!({ "unix": unix, "level": level, "event": fields.event });
    if let Some(line) = line.as_object_mut() {
        line.extend(fields.others);
    }
    line.to_string()
}

fn as_text(unix: u64, level: &str, fields: &Fields) -> String {
    let mut line = format!("{} {level:5} {}", iso(unix), fields.event);
    for (name, value) in &fields.others {
        // JSON strings escape line breaks that a peer may have sent.
        line.push_str(&format!(" {name}={value}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_formatted_as_json_and_as_text() {
        let fields = || {
            let others = json!({ "cause": "no\nroute", "relays": 5 });
            Fields { event: "refused".into(), others: others.as_object().unwrap().clone() }
        };
        let line: Value = serde_json::from_str(&as_json(3661, "warn", fields())).unwrap();
        let wanted =
            json!({ "unix": 3661, "level": "warn", "event": "refused", "cause": "no\nroute", "relays": 5 });
        assert_eq!(line, wanted);
        assert_eq!(
            as_text(3661, "WARN", &fields()),
            r#"1970-01-01T01:01:01 WARN  refused cause="no\nroute" relays=5"#
        );
    }
}
