//! [`Random`]: a seeded generator of numbers, with a taste for those near which verifiers have failed.

/// xorshift64*: small, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    pub fn new(seed: u64) -> Random {
        // Spreads small seeds over all bits; never 0, which xorshift would keep.
        let mixed = (seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        Random((mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) | 1)
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`; 0 if that is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        (self.bits() >> 11) % n.max(1)
    }

    /// As [`below`](Self::below), as an index.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// True that often in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True that often in a thousand.
    pub fn rarely(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// One of them; there is one at least.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// One of them, if there is any.
    pub fn any<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        if items.is_empty() { None } else { Some(self.pick(items)) }
    }

    /// Numbers near the borders where verifiers have failed, small ones, and any.
    pub fn edge(&mut self) -> u64 {
        let border = self.pick(&[0, 1 << 31, 1 << 32, 1 << 63, u64::MAX, 1 << 16, 1 << 8, 64]);
        match self.below(4) {
            0 => border.wrapping_add(self.below(5)).wrapping_sub(2),
            1 => self.below(70),
            2 => self.bits() >> self.below(64),
            _ => self.bits(),
        }
    }

    /// An immediate.
    pub fn imm(&mut self) -> i32 {
        match self.below(3) {
            0 => self.below(70) as i32 - 3,
            _ => self.edge() as i32,
        }
    }
}
