//! Fixed-width, little-endian fields of packets.

use scalerpc_core::{GeometryConfig, Mapping};

/// Reads fields; `None` when the bytes run out.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.u32()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// What [`config_words`] wrote.
    pub(crate) fn config(&mut self) -> Option<GeometryConfig> {
        Some(GeometryConfig {
            clients_max: self.u32()?,
            group_size: self.u32()?,
            window: self.u32()?,
            request_max_bytes: self.u32()?,
            response_max_bytes: self.u32()?,
            mapping: match self.flag()? {
                false => Mapping::Virtual,
                true => Mapping::Static,
            },
        })
    }

    /// The value, if all bytes have been read.
    pub(crate) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// A geometry, as it travels.
pub(crate) fn config_words(config: &GeometryConfig) -> [u32; 6] {
    [
        config.clients_max,
        config.group_size,
        config.window,
        config.request_max_bytes,
        config.response_max_bytes,
        u32::from(config.mapping == Mapping::Static),
    ]
}
