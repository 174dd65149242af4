//! Dense Cholesky factorisation, for the few rows that couple the circuits.

/// Replaces the lower half of a symmetric matrix by its Cholesky factor, with inverse diagonal; false if it
/// is not positive definite.
pub(super) fn cholesky(matrix: &mut [f64], size: usize) -> bool {
    for i in 0..size {
        let (above, row) = matrix.split_at_mut(i * size);
        for j in 0..i {
            let other = &above[j * size..];
            let dot: f64 = row[..j].iter().zip(&other[..j]).map(|(a, b)| a * b).sum();
            row[j] = (row[j] - dot) * other[j];
        }
        let left = row[i] - row[..i].iter().map(|a| a * a).sum::<f64>();
        if left.is_nan() || left <= 0.0 {
            return false;
        }
        row[i] = 1.0 / left.sqrt();
    }
    true
}

pub(super) fn solve_cholesky(factor: &[f64], rhs: &mut [f64]) {
    let size = rhs.len();
    for i in 0..size {
        let dot: f64 = factor[i * size..][..i].iter().zip(&rhs[..i]).map(|(a, b)| a * b).sum();
        rhs[i] = (rhs[i] - dot) * factor[i * size + i];
    }
    for i in (0..size).rev() {
        rhs[i] *= factor[i * size + i];
        for j in 0..i {
            rhs[j] -= factor[i * size + j] * rhs[i];
        }
    }
}
