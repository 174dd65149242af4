//! Suggestions for misspelt names.

/// "did you mean ...?" for a near name, otherwise the whole list.
pub fn suggest(name: &str, known: &[&str]) -> String {
    let similar = known.iter().filter(|candidate| {
        let (edits, shorter) = (edits(name, candidate), name.chars().count().min(candidate.chars().count()));
        // With as many edits as letters, nothing of the shorter name remains.
        edits <= 1 + shorter / 3 && edits < shorter
    });
    match similar.min_by_key(|candidate| edits(name, candidate)) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => String::new(),
        None => format!("known here: {}", known.join(", ")),
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
