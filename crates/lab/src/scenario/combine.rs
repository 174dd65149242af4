//! Every combination of alternatives as a system of its own.
//!
//! Each `[[combine]]` is one choice: alternatives by name, each the keys of a system that it sets. A combination
//! takes one alternative of each, in the order of the file, and is named after them: `pctcp-ewma-vegas`.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::merge;
use crate::input::{InputError, Source};

/// More systems than this are a slip of the pen.
const MAX_COMBINATIONS: usize = 1000;

/// Adds a `[[system]]` for each combination.
pub(super) fn systems<'a>(document: &mut DeTable<'a>, source: &Source) -> Result<(), InputError> {
    let Some(choices) = document.remove("combine") else { return Ok(()) };
    let span = choices.span();
    let no_alternatives = |span| {
        let cause = "a [[combine]] holds alternatives, and each of them keys of a system";
        Err(source.error(span, cause, "write it like `pctcp = { transport = \"pctcp\" }`"))
    };
    let DeValue::Array(choices) = choices.into_inner() else { return no_alternatives(span) };
    let mut combined: Vec<(String, DeTable<'a>)> = vec![Default::default()];
    for choice in choices {
        let span = choice.span();
        let DeValue::Table(alternatives) = choice.into_inner() else { return no_alternatives(span) };
        let mut longer = Vec::new();
        if combined.len() * alternatives.len() > MAX_COMBINATIONS {
            let cause = format!("there are more than {MAX_COMBINATIONS} combinations");
            return Err(source.error(span, cause, "leave out a choice"));
        }
        if alternatives.is_empty() {
            return no_alternatives(span);
        }
        for (name, keys) in &alternatives {
            let DeValue::Table(keys) = keys.get_ref() else { return no_alternatives(keys.span()) };
            for (so_far, system) in &combined {
                let dash = if so_far.is_empty() { "" } else { "-" };
                let mut system = system.clone();
                merge(&mut system, keys.clone(), true)
                    .map_err(|(cause, cure)| source.error(span.clone(), cause, cure))?;
                longer.push((format!("{so_far}{dash}{}", name.get_ref()), system));
            }
        }
        combined = longer;
    }
    let systems = combined.into_iter().map(|(name, mut system)| {
        let key = Spanned::new(span.clone(), Cow::Borrowed("name"));
        system.insert(key, Spanned::new(span.clone(), DeValue::String(Cow::Owned(name))));
        Spanned::new(span.clone(), DeValue::Table(system))
    });
    match document.get_mut("system").map(Spanned::get_mut) {
        Some(DeValue::Array(others)) => systems.for_each(|system| others.push(system)),
        Some(_) => {}
        None => {
            let key = Spanned::new(span.clone(), Cow::Borrowed("system"));
            document.insert(key, Spanned::new(span.clone(), DeValue::Array(systems.collect())));
        }
    }
    Ok(())
}
