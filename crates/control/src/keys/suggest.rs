//! Suggestions for misspelt names.

/// "did you mean ...?" for a near name, otherwise the whole list.
pub fn suggest(name: &str, known: &[&str]) -> String {
    let nearest = known.iter().min_by_key(|candidate| edits(name, candidate));
    match nearest {
        Some(near) if edits(name, near) <= 1 + name.chars().count().min(near.chars().count()) / 3 => {
            format!("did you mean `{near}`?")
        }
        Some(_) => format!("known here: {}", known.join(", ")),
        None => String::new(),
    }
}

/// Levenshtein distance of the first 64 characters.
pub(super) fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
