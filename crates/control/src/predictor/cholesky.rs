//! Dense Cholesky factorisation, for the few rows that couple the circuits.
//!
//! It works on whole rows, which the compiler turns into vector code.

/// Replaces the upper half of a symmetric matrix by its Cholesky factor, with inverse diagonal; false if it
/// is not positive definite.
pub(super) fn cholesky(matrix: &mut [f64], size: usize) -> bool {
    for i in 0..size {
        let (head, below) = matrix.split_at_mut((i + 1) * size);
        let row = &mut head[i * size + i..];
        let pivot = row[0];
        if pivot.is_nan() || pivot <= 0.0 {
            return false;
        }
        let inverse = 1.0 / pivot.sqrt();
        row[0] = inverse;
        row[1..].iter_mut().for_each(|entry| *entry *= inverse);
        for (j, other) in below.chunks_exact_mut(size).enumerate() {
            let share = row[j + 1];
            for (entry, mine) in other[i + 1 + j..].iter_mut().zip(&row[j + 1..]) {
                *entry -= share * mine;
            }
        }
    }
    true
}

/// Solves for a right-hand side, in place, with the factor of [`cholesky`].
pub(super) fn solve_cholesky(factor: &[f64], rhs: &mut [f64]) {
    let size = rhs.len();
    for i in 0..size {
        let (row, (head, tail)) = (&factor[i * size + i..][..size - i], rhs.split_at_mut(i + 1));
        head[i] *= row[0];
        for (entry, mine) in tail.iter_mut().zip(&row[1..]) {
            *entry -= head[i] * mine;
        }
    }
    for i in (0..size).rev() {
        let (row, (head, tail)) = (&factor[i * size + i..][..size - i], rhs.split_at_mut(i + 1));
        let mut sums = [0.0; 4];
        for (entries, mine) in tail.chunks(4).zip(row[1..].chunks(4)) {
            for (sum, (entry, mine)) in sums.iter_mut().zip(entries.iter().zip(mine)) {
                *sum += entry * mine;
            }
        }
        head[i] = (head[i] - ((sums[0] + sums[1]) + (sums[2] + sums[3]))) * row[0];
    }
}
