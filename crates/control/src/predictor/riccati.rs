//! One circuit's Hessian, factored and inverted along the horizon in time linear in its length.
//!
//! A circuit's rates `u_k` move its queues `z_{k+1} = z_k + u_k`; the barrier weighs rates by `R_k` and
//! queues by `Q_k`. Its Hessian is block diagonal plus semiseparable, and dynamic programming is its
//! factorisation: a backward Riccati recursion gives feedback gains `K_k` and `M_k = R_k + Π_{k+1}`, after
//! which a linear system costs one backward and one forward sweep. The *whole inverse* is the
//! covariance of the rates of the loop `u_k = -K_k z_k + w_k`, `cov w_k = M_k^{-1}`, computed
//! block by block without forming a matrix.

use super::lane::Lane;

/// A small matrix of lanes.
pub(super) type Mat<const M: usize> = [[Lane; M]; M];
/// A small vector of lanes.
pub(super) type Vector<const M: usize> = [Lane; M];

/// The factor of one step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factor<const M: usize> {
    /// Feedback gain `K_k`.
    gain: Mat<M>,
    /// `M_k^{-1}`.
    inverse: Mat<M>,
}

/// A positive semidefinite matrix as a network of conductances between its nodes, and to ground.
///
/// All barrier weights and costs-to-go have this form. Computing with conductances never subtracts, so digits
/// are not lost even if active and idle constraints differ by many orders of magnitude.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network<const M: usize> {
    /// Symmetric, without diagonal.
    edge: Mat<M>,
    ground: Vector<M>,
}

impl<const M: usize> Network<M> {
    pub(crate) const NONE: Network<M> = Network { edge: [[Lane::ZERO; M]; M], ground: [Lane::ZERO; M] };

    /// Weighs the difference of two nodes.
    #[inline(always)]
    pub(crate) fn tie(&mut self, i: usize, j: usize, weight: Lane) {
        self.edge[i][j] += weight;
        self.edge[j][i] += weight;
    }

    /// Weighs one node.
    #[inline(always)]
    pub(crate) fn hold(&mut self, i: usize, weight: Lane) {
        self.ground[i] += weight;
    }

    /// The inverse of this matrix plus a diagonal, by Gaussian elimination in conductances.
    #[inline(always)]
    fn inverse_with(&self, diagonal: &Vector<M>) -> Mat<M> {
        let (mut edge, mut ground) = (self.edge, self.ground);
        for i in 0..M {
            ground[i] += diagonal[i];
        }
        let mut inverse_pivot = [Lane::ZERO; M];
        let mut share = zeros::<M>();
        for pivot in (0..M).rev() {
            let mut sum = ground[pivot];
            for i in 0..pivot {
                sum += edge[pivot][i];
            }
            inverse_pivot[pivot] = Lane::ONE / sum;
            for i in 0..pivot {
                share[pivot][i] = edge[pivot][i] * inverse_pivot[pivot];
                ground[i] += share[pivot][i] * ground[pivot];
                for j in 0..i {
                    edge[i][j] += share[pivot][i] * edge[pivot][j];
                    edge[j][i] = edge[i][j];
                }
            }
        }
        let mut inverse = zeros();
        for column in 0..M {
            let mut x = [Lane::ZERO; M];
            x[column] = Lane::ONE;
            for pivot in (1..=column).rev() {
                for i in 0..pivot {
                    let through = share[pivot][i] * x[pivot];
                    x[i] += through;
                }
            }
            for row in 0..M {
                x[row] = x[row] * inverse_pivot[row];
                for i in 0..row {
                    let through = share[row][i] * x[i];
                    x[row] += through;
                }
                inverse[row][column] = x[row];
            }
        }
        inverse
    }
}

#[inline(always)]
fn zeros<const M: usize>() -> Mat<M> {
    [[Lane::ZERO; M]; M]
}

impl<const M: usize> Factor<M> {
    pub(crate) const NONE: Factor<M> = Factor { gain: [[Lane::ZERO; M]; M], inverse: [[Lane::ZERO; M]; M] };

    /// Takes one step backward: `rates` is the diagonal of `R_k`, and `future` is `Π_{k+1}`, which becomes
    /// `Π_k` without the queue weight `Q_k`.
    #[inline(always)]
    pub(crate) fn step(rates: &Vector<M>, future: &mut Network<M>) -> Factor<M> {
        let inverse = future.inverse_with(rates);
        let mut gain = zeros();
        let mut next = Network::NONE;
        for i in 0..M {
            let mut drain = Lane::ZERO;
            for j in 0..M {
                drain += inverse[i][j] * future.ground[j];
            }
            gain[i][i] = drain;
            next.ground[i] = rates[i] * drain;
            for j in 0..M {
                if j != i {
                    let along = inverse[i][j] * rates[j];
                    gain[i][j] = -along;
                    gain[i][i] += along;
                    next.edge[i][j] = rates[i] * along;
                }
            }
        }
        *future = next;
        Factor { gain, inverse }
    }

    /// The backward half of a solve: from the linear cost `pull` on the queues after this step and the
    /// right-hand side `f`, the rate at queues zero; `pull` becomes the cost on the queues before it.
    #[inline(always)]
    pub(crate) fn backward(&self, f: &Vector<M>, pull: &mut Vector<M>) -> Vector<M> {
        let mut gap = *f;
        for i in 0..M {
            gap[i] -= pull[i];
        }
        let mut open = [Lane::ZERO; M];
        for i in 0..M {
            for j in 0..M {
                open[i] += self.inverse[i][j] * gap[j];
                pull[i] += self.gain[j][i] * gap[j];
            }
        }
        open
    }

    /// The forward half: the rate with feedback from the queues, which move on.
    #[inline(always)]
    pub(crate) fn forward(&self, open: &Vector<M>, queues: &mut Vector<M>) -> Vector<M> {
        let mut rate = *open;
        for i in 0..M {
            for j in 0..M {
                rate[i] -= self.gain[i][j] * queues[j];
            }
        }
        for i in 0..M {
            queues[i] += rate[i];
        }
        rate
    }
}

/// Adds the inverse of a circuit's Hessian to `inverse`, the lower block triangle in the order of
/// [`block_index`]; `transfer` is working memory of one matrix per step.
#[inline(always)]
pub(super) fn add_inverse<'a, const M: usize>(
    factors: impl Iterator<Item = &'a Factor<M>>,
    transfer: &mut [Mat<M>],
    inverse: &mut [Mat<M>],
) {
    let mut spread = zeros();
    for (k, factor) in factors.enumerate() {
        let row = &mut inverse[block_index(k, 0)..];
        for (j, moved) in transfer[..k].iter_mut().enumerate() {
            let reply = multiply(&factor.gain, moved);
            for a in 0..M {
                for b in 0..M {
                    moved[a][b] -= reply[a][b];
                    row[j][a][b] -= reply[a][b];
                }
            }
        }
        // cov(z_k, u_k) = -P K', cov(u_k, u_k) = K P K' + M^{-1}
        let fed = multiply(&factor.gain, &spread);
        let mut own = factor.inverse;
        for a in 0..M {
            for b in 0..M {
                for c in 0..M {
                    own[a][b] += fed[a][c] * factor.gain[b][c];
                }
            }
        }
        for a in 0..M {
            for b in 0..M {
                row[k][a][b] += own[a][b];
                // cov(z_{k+1}, u_k), then cov(z_{k+1}, z_{k+1}) with z_{k+1} = z_k + u_k.
                transfer[k][a][b] = own[a][b] - fed[b][a];
            }
        }
        for a in 0..M {
            for b in 0..M {
                spread[a][b] += transfer[k][a][b] - fed[a][b];
            }
        }
    }
}

/// Index of the block of row `k` and column `j <= k`.
pub(super) fn block_index(k: usize, j: usize) -> usize {
    k * (k + 1) / 2 + j
}

#[inline(always)]
fn multiply<const M: usize>(a: &Mat<M>, b: &Mat<M>) -> Mat<M> {
    let mut product = zeros();
    for i in 0..M {
        for j in 0..M {
            for k in 0..M {
                product[i][j] += a[i][k] * b[k][j];
            }
        }
    }
    product
}
