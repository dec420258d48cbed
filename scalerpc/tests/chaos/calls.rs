//! What is asked and answered: every byte follows from who asks, on which connection, and how often
//! before.

use scalerpc::observe::METHODS_RESERVED;

/// Numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Bytes of a request before its body: the call's name.
pub const REQUEST_HEADER: usize = 24;

/// Names a call among all calls of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Of a client's link; no two links have the same.
    pub client: u64,
    pub connection: u64,
    /// From 1, without gaps.
    pub number: u64,
}

impl Name {
    fn stream(self, salt: u64) -> Rng {
        let mut rng = Rng(self.client ^ salt);
        rng.0 = rng.next() ^ self.connection;
        rng.0 = rng.next() ^ self.number;
        rng
    }

    fn words(self) -> [u64; 3] {
        [self.client, self.connection, self.number]
    }

    /// Any that a handler may see.
    pub fn method(self) -> u16 {
        self.stream(1).next() as u16 % METHODS_RESERVED
    }

    /// The request, of at most `max` bytes.
    pub fn request(self, max: usize) -> Vec<u8> {
        message(&self.words(), max, self.stream(2))
    }

    /// The answer, of at most `max` bytes; `runs` is how many calls of the connection have run.
    pub fn answer(self, runs: u64, max: usize) -> Vec<u8> {
        let [client, connection, number] = self.words();
        message(&[client, connection, number, runs], max, self.stream(3))
    }

    /// The call that a request names.
    pub fn of(request: &[u8]) -> Option<Self> {
        let words = request.get(..REQUEST_HEADER)?;
        let word = |i: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&words[8 * i..8 * (i + 1)]);
            u64::from_le_bytes(bytes)
        };
        Some(Self {
            client: word(0),
            connection: word(1),
            number: word(2),
        })
    }
}

/// Bytes that are drawn; longer bodies repeat them. To make and to check a message must take less time than
/// to send it, or signals would hit nothing else.
const DRAWN: usize = 256;

fn message(header: &[u64], max: usize, mut body: Rng) -> Vec<u8> {
    let header_bytes = 8 * header.len();
    let len = header_bytes + body.below((max - header_bytes + 1) as u64) as usize;
    let mut bytes = Vec::with_capacity(len + DRAWN);
    for word in header {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    while bytes.len() < len.min(header_bytes + DRAWN) {
        bytes.extend_from_slice(&body.next().to_le_bytes());
    }
    while bytes.len() < len {
        let from = bytes.len() - DRAWN;
        bytes.extend_from_within(from..);
        // No two parts are the same.
        bytes[from + DRAWN] = bytes[from + DRAWN].wrapping_add(1);
    }
    bytes.truncate(len);
    bytes
}
