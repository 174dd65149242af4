//! Four circuits side by side, as plain arrays with element-wise loops that the compiler vectorises.
//!
//! The passes over all circuits are compiled for any processor and for AVX2; both give the same bits.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub, SubAssign};

/// Number of circuits computed together.
pub(super) const LANES: usize = 4;

/// One number of each of [`LANES`] circuits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(align(32))]
pub(super) struct Lane(pub [f64; LANES]);

impl Lane {
    pub(crate) const ZERO: Lane = Lane([0.0; LANES]);
    pub(crate) const ONE: Lane = Lane([1.0; LANES]);

    #[inline(always)]
    pub(crate) fn all(value: f64) -> Lane {
        Lane([value; LANES])
    }

    #[inline(always)]
    pub(crate) fn min(mut self, other: Lane) -> Lane {
        for i in 0..LANES {
            self.0[i] = if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    #[inline(always)]
    pub(crate) fn max(mut self, other: Lane) -> Lane {
        for i in 0..LANES {
            self.0[i] = if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    #[inline(always)]
    pub(crate) fn sum(self) -> f64 {
        (self.0[0] + self.0[1]) + (self.0[2] + self.0[3])
    }

    #[inline(always)]
    pub(crate) fn largest(self) -> f64 {
        self.0[0].max(self.0[1]).max(self.0[2].max(self.0[3]))
    }

    #[inline(always)]
    pub(crate) fn abs(mut self) -> Lane {
        for i in 0..LANES {
            self.0[i] = self.0[i].abs();
        }
        self
    }
}

macro_rules! elementwise {
    ($($trait:ident $method:ident $op:tt),*) => {$(
        impl $trait for Lane {
            type Output = Lane;
            #[inline(always)]
            fn $method(self, rhs: Lane) -> Lane {
                let mut result = Lane::ZERO;
                for i in 0..LANES {
                    result.0[i] = self.0[i] $op rhs.0[i];
                }
                result
            }
        }
    )*};
}
elementwise!(Add add +, Sub sub -, Mul mul *, Div div /);

impl AddAssign for Lane {
    #[inline(always)]
    fn add_assign(&mut self, rhs: Lane) {
        *self = *self + rhs;
    }
}

impl SubAssign for Lane {
    #[inline(always)]
    fn sub_assign(&mut self, rhs: Lane) {
        *self = *self - rhs;
    }
}

impl Neg for Lane {
    type Output = Lane;
    #[inline(always)]
    fn neg(mut self) -> Lane {
        for i in 0..LANES {
            self.0[i] = -self.0[i];
        }
        self
    }
}
