//! Dense Cholesky factorisation, for the few rows that couple the circuits.
//!
//! It works on whole rows in steps of [`LANES`] entries, which the compiler turns into vector code. Entries left of the
//! diagonal and beyond a row's end come along and are never read as results.

use pulp::{Arch, Simd, WithSimd};

use super::lane::{LANES, Lane};

/// A symmetric matrix, of which only the upper half counts, or its factor with inverse diagonal.
#[derive(Debug, Default)]
pub(super) struct Matrix {
    size: usize,
    /// Length of a stored row: whole steps from any entry of the row on.
    stride: usize,
    entries: Vec<f64>,
    /// A right-hand side with the length of a row.
    rhs: Vec<f64>,
}

impl Matrix {
    /// Makes it a matrix of `size` rows; every entry of the upper half is to be [set](Self::set).
    pub(crate) fn resize(&mut self, size: usize) {
        if size != self.size {
            (self.size, self.stride) = (size, (size + LANES - 1).next_multiple_of(LANES));
            self.entries.clear();
            self.entries.resize(size * self.stride, 0.0);
        }
    }

    /// Sets an entry in the upper half: `row <= column`.
    pub(crate) fn set(&mut self, row: usize, column: usize, value: f64) {
        self.entries[row * self.stride + column] = value;
    }

    /// Adds to an entry of the diagonal.
    pub(crate) fn add(&mut self, row: usize, value: f64) {
        self.entries[row * self.stride + row] += value;
    }

    /// Replaces the matrix by its Cholesky factor; false if it is not positive definite.
    pub(crate) fn factor(&mut self) -> bool {
        Arch::new().dispatch(Factor(self))
    }

    /// Solves for a right-hand side, in place, with the factor.
    pub(crate) fn solve(&mut self, rhs: &mut [f64]) {
        self.rhs.clear();
        self.rhs.extend_from_slice(rhs);
        self.rhs.resize(self.stride, 0.0);
        Arch::new().dispatch(Solve(self));
        rhs.copy_from_slice(&self.rhs[..rhs.len()]);
    }
}

/// Subtracts `share * from` from as many entries.
#[inline(always)]
fn subtract(entries: &mut [f64], share: f64, from: &[f64]) {
    for (entries, from) in entries.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
        *entries = (Lane(*entries) - Lane::all(share) * Lane(*from)).0;
    }
}

/// [`Matrix::factor`] as a type that `pulp` compiles for several processors.
struct Factor<'a>(&'a mut Matrix);

impl WithSimd for Factor<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let Matrix { size, stride, entries, .. } = self.0;
        for i in 0..*size {
            let (head, below) = entries.split_at_mut((i + 1) * *stride);
            let begin = i / LANES * LANES;
            let row = &mut head[i * *stride + begin..];
            let pivot = row[i - begin];
            if pivot.is_nan() || pivot <= 0.0 {
                return false;
            }
            let inverse = 1.0 / pivot.sqrt();
            row.iter_mut().for_each(|entry| *entry *= inverse);
            row[i - begin] = inverse;
            for (column, other) in (i + 1..).zip(below.chunks_exact_mut(*stride)) {
                let from = column / LANES * LANES;
                subtract(&mut other[from..], row[column - begin], &row[from - begin..]);
            }
        }
        true
    }
}

/// [`Matrix::solve`], likewise.
struct Solve<'a>(&'a mut Matrix);

impl WithSimd for Solve<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Matrix { size, stride, entries, rhs } = self.0;
        for i in 0..*size {
            let row = &entries[i * *stride..][..*stride];
            rhs[i] *= row[i];
            let (share, whole) = (rhs[i], (i + 1).next_multiple_of(LANES));
            for column in i + 1..whole {
                rhs[column] -= share * row[column];
            }
            subtract(&mut rhs[whole..], share, &row[whole..]);
        }
        for i in (0..*size).rev() {
            let row = &entries[i * *stride..][..*stride];
            let steps = (*size - i - 1).div_ceil(LANES);
            let tail = rhs[i + 1..].as_chunks().0.iter().zip(row[i + 1..].as_chunks().0);
            let mut sums = Lane::ZERO;
            for (entries, mine) in tail.take(steps) {
                sums += Lane(*entries) * Lane(*mine);
            }
            rhs[i] = (rhs[i] - sums.sum()) * row[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Seed;

    /// The same sums in the same order, entry by entry.
    fn plain(mut matrix: Vec<Vec<f64>>, mut rhs: Vec<f64>) -> Vec<f64> {
        let size = rhs.len();
        for i in 0..size {
            let inverse = 1.0 / matrix[i][i].sqrt();
            matrix[i].iter_mut().for_each(|entry| *entry *= inverse);
            matrix[i][i] = inverse;
            for j in i + 1..size {
                for k in j..size {
                    matrix[j][k] -= matrix[i][j] * matrix[i][k];
                }
            }
        }
        for i in 0..size {
            rhs[i] *= matrix[i][i];
            for j in i + 1..size {
                rhs[j] -= rhs[i] * matrix[i][j];
            }
        }
        for i in (0..size).rev() {
            let mut sums = [0.0; 4];
            for j in i + 1..size {
                sums[(j - i - 1) % 4] += rhs[j] * matrix[i][j];
            }
            rhs[i] = (rhs[i] - ((sums[0] + sums[1]) + (sums[2] + sums[3]))) * matrix[i][i];
        }
        rhs
    }

    #[test]
    fn vectors_give_the_bits_of_single_entries_and_solve_the_system() {
        let mut draws = Seed::root(1).random();
        let mut matrix = Matrix::default();
        for size in (1..34).chain([20, 3]) {
            let root: Vec<Vec<f64>> =
                (0..size).map(|_| (0..size).map(|_| draws.uniform(-1.0, 1.0)).collect()).collect();
            let product = |i: usize, j: usize| {
                let sum: f64 = (0..size).map(|k| root[i][k] * root[j][k]).sum();
                sum + f64::from(u8::from(i == j))
            };
            let all: Vec<Vec<f64>> = (0..size).map(|i| (0..size).map(|j| product(i, j)).collect()).collect();
            let rhs: Vec<f64> = (0..size).map(|_| draws.uniform(-1.0, 1.0)).collect();
            matrix.resize(size);
            for i in 0..size {
                (i..size).for_each(|j| matrix.set(i, j, all[i][j]));
            }
            assert!(matrix.factor());
            let mut solved = rhs.clone();
            matrix.solve(&mut solved);
            assert_eq!(solved, plain(all.clone(), rhs.clone()), "{size} rows");
            for (row, rhs) in all.iter().zip(&rhs) {
                let sum: f64 = row.iter().zip(&solved).map(|(a, b)| a * b).sum();
                assert!((sum - rhs).abs() < 1e-9, "{size} rows");
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_refused() {
        let mut matrix = Matrix::default();
        for entries in [[1.0, 2.0, 1.0], [-1.0, 0.0, 1.0], [f64::NAN, 0.0, 1.0]] {
            matrix.resize(2);
            for ((row, column), value) in [(0, 0), (0, 1), (1, 1)].into_iter().zip(entries) {
                matrix.set(row, column, value);
            }
            assert!(!matrix.factor(), "{entries:?}");
        }
    }
}
