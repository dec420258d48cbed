//! Choices, read from an input byte by byte.

use scalerpc_core::post::Limits;
use scalerpc_core::server::{AdaptiveSlice, Grouping, ServerConfig};
use scalerpc_core::wire::Placement;
use scalerpc_core::{GeometryConfig, Mapping};

use super::common::Setup;

/// When the bytes run out, every further choice is zero.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    pub fn word(&mut self) -> u64 {
        let mut word = [0; 8];
        let bytes = self.bytes(8);
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    }

    /// At most `len` bytes.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }

    /// Less than `end`, which is from 1 to 256.
    pub fn below(&mut self, end: u32) -> u32 {
        u32::from(self.byte()) % end
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u32) as usize]
    }

    /// The right number more often than not; else one beside it, at a limit, or any.
    pub fn near(&mut self, right: u64) -> u64 {
        match self.byte() {
            0..=0x9f => right,
            0xa0..=0xbf => right.wrapping_add(1),
            0xc0..=0xcf => right.wrapping_sub(1),
            0xd0..=0xdf => right.wrapping_add(u64::from(self.byte())),
            0xe0..=0xef => self.one_of(&[
                0,
                1,
                63,
                64,
                u64::MAX,
                1 << 63,
                0xffff_ffff,
                1 << 32,
                1 << 16,
                u64::MAX - 63,
            ]),
            _ => self.word(),
        }
    }

    pub fn near_u32(&mut self, right: u32) -> u32 {
        self.near(right.into()) as u32
    }

    pub fn placement(&mut self) -> Placement {
        self.one_of(&[Placement::InOrder, Placement::AnyOrder])
    }

    /// A small system with so many seats, and groups of at least so many.
    pub fn setup(&mut self, clients_max: u32, group_size_min: u32) -> Setup {
        let window = self.one_of(&[4, 1, 2, 8]);
        let sge_max = self.one_of(&[4, 1, 2, 8]);
        let depth_min = (window / sge_max + 2).max(4);
        let mut setup = Setup {
            geometry: GeometryConfig {
                clients_max,
                group_size: group_size_min + self.below(3),
                window,
                request_max_bytes: self.one_of(&[100, 0, 32, 64]),
                response_max_bytes: self.one_of(&[100, 0, 32, 64]),
                mapping: self.one_of(&[
                    Mapping::Virtual,
                    Mapping::Virtual,
                    Mapping::Virtual,
                    Mapping::Static,
                ]),
            },
            server: ServerConfig {
                time_slice_ns: self.one_of(&[10_000, 1_000, 100_000]),
                adaptive_slice: None,
                idle_switch_ns: self.one_of(&[1_000, 0, 100_000]),
                revoke_after_ns: self.one_of(&[10_000, 0]),
                fence_after_ns: u64::MAX,
                rest_after_ns: None,
                burst: 1 + self.below(8),
                grouping: Grouping::Priority,
                led: false,
                calls_in_flight_max: u32::MAX,
            },
            limits: Limits {
                sq_depth: depth_min + self.below(32),
                sge_max,
                inline_max: self.one_of(&[0, 64, usize::MAX]),
                can_revoke: self.flag(),
                placement: self.placement(),
            },
            handler_ns: self.one_of(&[0, 300, 20_000]),
            keep_calls: true,
            revokes: true,
        };
        // Not a choice of its own, so that inputs keep their meaning.
        if setup.server.time_slice_ns == 1_000 {
            setup.server.adaptive_slice = Some(AdaptiveSlice {
                min_ns: 500,
                max_ns: 20_000,
                share_permille: 100,
            });
        }
        // Costs no input of its own, for the sake of the corpus.
        setup.server.rest_after_ns = (setup.server.burst % 2 == 0).then_some(2_000);
        setup
    }
}
