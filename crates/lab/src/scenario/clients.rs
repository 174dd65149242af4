//! Networks with two kinds of clients: `old-clients` and `other-clients` of a `[[system]]`.

use std::sync::Arc;

use serde_json::Value;
use tidegate_proto::combinations;
use tidegate_proto::control::{Clock, Place};
use tidegate_proto::registry::CONTROLS;
use tidegate_sim::plan::{Ends, FixedWindows, OtherClients, System};

use super::file::{OtherClientsFile, ScenarioFile, SystemFile};
use super::place::Placed;
use crate::input::{InputError, SourceFile, suggest};

/// Keys of a system that concern only the ends of circuits, besides the tables of controls.
const AT_THE_ENDS: [&str; 7] =
    ["name", "of-consensus", "old-clients", "other-clients", "control", "windows", "paths"];

/// Gives systems their second kind of clients. `of-consensus` must have been resolved.
pub(super) fn mix(
    systems: &mut [System],
    file: &ScenarioFile,
    source: &SourceFile,
) -> Result<(), InputError> {
    for (index, table) in file.system.iter().enumerate() {
        let others = match &table.other_clients {
            Some(wanted) if wanted.share > 0.0 => Some(of_system(table, wanted, systems, file, source)?),
            _ if table.old_clients > 0.0 => Some(old(table, &systems[index], source)?),
            _ => None,
        };
        systems[index].other_clients = others;
    }
    Ok(())
}

fn old(table: &Placed<SystemFile>, system: &System, source: &SourceFile) -> Result<OtherClients, InputError> {
    combinations::check_old_clients(&table.parts.table, &*system.control).map_err(|wrong| {
        source.error(table.span(), format!("system `{}`: {}", system.name, wrong.cause), wrong.cure)
    })?;
    let ends = Ends { control: Arc::new(FixedWindows), windows: system.windows };
    Ok(OtherClients { name: "old".into(), share: table.old_clients, ends, paths: system.paths.clone() })
}

fn of_system(
    table: &Placed<SystemFile>,
    wanted: &OtherClientsFile,
    systems: &[System],
    file: &ScenarioFile,
    source: &SourceFile,
) -> Result<OtherClients, InputError> {
    let (own, name) = (table.name.get_ref(), wanted.of.get_ref());
    let fail = |cause: String, cure: String| {
        Err(source.error(wanted.of.span(), format!("system `{own}`: `other-clients`: {cause}"), cure))
    };
    let known: Vec<&str> = systems.iter().map(|system| system.name.as_str()).filter(|n| n != own).collect();
    let Some(index) = systems.iter().position(|system| system.name == *name && name != own) else {
        return fail(format!("there is no other system `{name}`"), suggest(name, &known));
    };
    let other = &file.system[index];
    if table.old_clients > 0.0 || other.old_clients > 0.0 || other.other_clients.is_some() {
        let cure = "a network has at most two kinds of clients: drop `old-clients` or `other-clients`";
        return fail("the two systems define more than two kinds of clients".into(), cure.into());
    }
    let [here, there] = [table.get_ref(), other.get_ref()]
        .map(|system| serde_json::to_value(system).expect("systems can be written"));
    let at_relays =
        |key: &str| !AT_THE_ENDS.contains(&key) && !CONTROLS.iter().any(|control| control.name == key);
    let keys = here.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    if let Some(key) = keys.into_iter().find(|key| at_relays(key) && here[key] != there[key]) {
        let cause = format!("`{key}` is {} in `{own}` and {} in `{name}`", here[key], there[key]);
        return fail(cause, "use the same value: only `control`, `windows` and `paths` may differ, because all clients share the relays".into());
    }
    // A control's table has an effect only if the system uses that control.
    let control = |system: &Value| {
        let name = system["control"].as_str().unwrap_or_default().to_owned();
        (system[&name].clone(), name)
    };
    let steers = |system: &System| {
        let place = Place { bandwidth: f64::INFINITY, clock: Clock::default() };
        system.control.controller(&place).is_some()
    };
    let own_system = systems.iter().find(|system| system.name == *own).expect("it has a table");
    let (one, two) = (control(&here), control(&there));
    if let Some((_, steering)) =
        [(own_system, &one.1), (&systems[index], &two.1)].into_iter().find(|(s, _)| one != two && steers(s))
    {
        let cause =
            format!("`control = \"{steering}\"` also runs at relays, so it cannot differ between clients");
        return fail(cause, "mix `windows` and `vegas`, or give both systems the same control".into());
    }
    let same = |key: &str| here[key] == there[key];
    if one == two && same("windows") && same("paths") {
        let cure = "change `control`, `windows` or `paths` of one system";
        return fail(format!("clients of `{name}` do not differ from those of `{own}`"), cure.into());
    }
    let other = &systems[index];
    let ends = Ends { control: other.control.clone(), windows: other.windows };
    Ok(OtherClients { name: name.clone(), share: wanted.share, ends, paths: other.paths.clone() })
}
