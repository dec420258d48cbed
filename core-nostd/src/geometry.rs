//! All sizes and addresses, computed once from a few numbers and checked where they are made.
//!
//! ```text
//! server, exposed   [ demand map ][ endpoint table ][ pool A ][ pool B ][ asleep ]
//! server, private   [ send slots ]
//! client, exposed   [ connection 0 ][ connection 1 ] ..   each: [ staging area ][ response ring ]
//! client, private   [ connection 0 ][ connection 1 ] ..   each: [ entry image ][ words ][ request slots ]
//! ```
//!
//! *Exposed* memory is reached by the peer, *private* memory only by this side (and its NIC).

use crate::wire::{EXT_BYTES, LINE, TRAILER_BYTES};

/// Most connections that a server may have seats for.
pub const CLIENTS_MAX: u32 = 1 << 20;
/// Most zones of one pool.
pub const ZONES_MAX: u32 = 1 << 20;
/// Most blocks of one zone.
pub const WINDOW_MAX: u32 = 1 << 10;
/// Largest request or response payload, in bytes.
pub const PAYLOAD_MAX_BYTES: u32 = 1 << 24;
/// Slots of a response ring beyond the window. At most one switch event is on its way to a client at
/// any time: the next tenancy starts only after the client has answered it. One more is to spare.
pub const CONTROL_SLOTS: u32 = 2;

/// How connections are given blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mapping {
    /// All groups share two pools in turn (virtualized mapping, section 3.2 of the paper).
    #[default]
    Virtual,
    /// Every connection has a zone of its own for as long as it lives, and there are no groups.
    Static,
}

/// What a user chooses; see [`Geometry::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GeometryConfig {
    /// Seats for connections, 1 to [`CLIENTS_MAX`].
    pub clients_max: u32,
    /// Connections that are served together, at least 1. The paper's evaluation uses 40.
    pub group_size: u32,
    /// Blocks per zone, that is calls that a connection may have outstanding: a power of two up to
    /// [`WINDOW_MAX`].
    pub window: u32,
    /// Largest request payload in bytes, up to [`PAYLOAD_MAX_BYTES`].
    pub request_max_bytes: u32,
    /// Largest response payload in bytes, up to [`PAYLOAD_MAX_BYTES`].
    pub response_max_bytes: u32,
    /// How connections are given blocks.
    pub mapping: Mapping,
}

impl Default for GeometryConfig {
    fn default() -> Self {
        Self {
            clients_max: 1024,
            group_size: 40,
            window: 16,
            request_max_bytes: 4096,
            response_max_bytes: 4096,
            mapping: Mapping::Virtual,
        }
    }
}

/// A number of a [`GeometryConfig`] that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeometryError {
    /// A field is outside of its range.
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// Smallest value allowed.
        min: u64,
        /// Largest value allowed.
        max: u64,
    },
    /// The window is not a power of two.
    WindowNotPowerOfTwo {
        /// What was asked for.
        value: u32,
    },
    /// The memory of the server or of a client does not fit the address space.
    TooLarge,
}

impl core::fmt::Display for GeometryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::OutOfRange {
                field,
                value,
                min,
                max,
            } => {
                write!(f, "{field} is {value}, but must be from {min} to {max}")
            }
            Self::WindowNotPowerOfTwo { value } => {
                write!(f, "window is {value}, but must be a power of two")
            }
            Self::TooLarge => f.write_str(
                "the memory for this geometry does not fit the address space: \
                 use fewer zones, a smaller window or smaller messages",
            ),
        }
    }
}

impl core::error::Error for GeometryError {}

/// Validated sizes and layouts. Cheap to copy; equal configurations give equal geometries, so the two
/// ends agree by exchanging the [`GeometryConfig`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    config: GeometryConfig,
    zones: u32,
    request_block: usize,
    request_stride: usize,
    response_stride: usize,
    response_block: usize,
    ring_slots: u32,
    zone_stride: usize,
    pools_at: usize,
    pool_bytes: usize,
    send_slots: u32,
    server_exposed: usize,
    client_exposed: usize,
    client_private: usize,
}

/// Rounds up to whole cache lines.
const fn lines(bytes: u64) -> u64 {
    bytes.div_ceil(LINE as u64) * LINE as u64
}

/// Rounds up to an odd number of cache lines: blocks at such a stride spread over all cache sets,
/// where a power of two would put them all into the same few.
const fn odd_lines(bytes: u64) -> u64 {
    let bytes = lines(bytes);
    if (bytes / LINE as u64) % 2 == 0 {
        bytes + LINE as u64
    } else {
        bytes
    }
}

fn in_range(field: &'static str, value: u32, min: u32, max: u32) -> Result<(), GeometryError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(GeometryError::OutOfRange {
        field,
        value: value.into(),
        min: min.into(),
        max: max.into(),
    })
}

/// A size in bytes that this address space can hold.
fn fits(bytes: u64) -> Result<usize, GeometryError> {
    usize::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= isize::MAX as usize)
        .ok_or(GeometryError::TooLarge)
}

impl Geometry {
    /// Checks a configuration and computes everything that follows from it.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] names the field that is out of range, or says that the memory would not fit.
    pub fn new(config: GeometryConfig) -> Result<Self, GeometryError> {
        in_range("clients_max", config.clients_max, 1, CLIENTS_MAX)?;
        in_range("group_size", config.group_size, 1, ZONES_MAX / 2)?;
        in_range("window", config.window, 1, WINDOW_MAX)?;
        in_range(
            "request_max_bytes",
            config.request_max_bytes,
            0,
            PAYLOAD_MAX_BYTES,
        )?;
        in_range(
            "response_max_bytes",
            config.response_max_bytes,
            0,
            PAYLOAD_MAX_BYTES,
        )?;
        if !config.window.is_power_of_two() {
            return Err(GeometryError::WindowNotPowerOfTwo {
                value: config.window,
            });
        }
        // A group may grow to 1.5 times its default size before it is split (section 3.4 of the
        // paper), so that many zones let the largest group be mapped at once; with groups of the
        // default size the rest is in reserve for zones in quarantine.
        let zones = match config.mapping {
            Mapping::Virtual => config.group_size + config.group_size.div_ceil(2),
            Mapping::Static => config.clients_max,
        };
        let window = u64::from(config.window);
        // The largest request fits with an extension, too: whether a call may have a budget does not depend
        // on its size.
        let request_block =
            lines(u64::from(config.request_max_bytes) + (TRAILER_BYTES + EXT_BYTES) as u64);
        let request_stride = odd_lines(request_block);
        let response_block =
            lines(u64::from(config.response_max_bytes) + (TRAILER_BYTES + EXT_BYTES) as u64);
        let response_stride = odd_lines(response_block);
        // Unread responses belong to outstanding calls, of which there are at most `window`.
        let ring_slots = (config.window + CONTROL_SLOTS).next_power_of_two();
        let zone_stride = odd_lines(window * request_stride);
        let pool_bytes = u64::from(zones) * zone_stride;
        let pools = match config.mapping {
            Mapping::Virtual => 2,
            Mapping::Static => 1,
        };
        let clients = u64::from(config.clients_max);
        // At the end, the word that says that the server is asleep has a line of its own.
        let server_exposed =
            lines(clients) + clients * LINE as u64 + pools * pool_bytes + LINE as u64;
        let client_exposed =
            odd_lines(window * request_block + u64::from(ring_slots) * response_stride);
        let client_private = odd_lines(2 * LINE as u64 + window * request_stride);
        Ok(Self {
            config,
            zones,
            request_block: fits(request_block)?,
            request_stride: fits(request_stride)?,
            response_block: fits(response_block)?,
            response_stride: fits(response_stride)?,
            ring_slots,
            zone_stride: fits(zone_stride)?,
            pools_at: fits(lines(clients) + clients * LINE as u64)?,
            pool_bytes: fits(pool_bytes)?,
            // Half of the slots may wait for an unsignaled WRITE to be covered by a later completion;
            // the other half is only ever used by signaled ones.
            send_slots: zones.saturating_mul(2).clamp(16, 512),
            server_exposed: fits(server_exposed)?,
            client_exposed: fits(client_exposed)?,
            client_private: fits(client_private)?,
        })
    }

    /// The configuration that this geometry came from.
    pub fn config(&self) -> &GeometryConfig {
        &self.config
    }

    /// Seats for connections.
    pub fn clients_max(&self) -> u32 {
        self.config.clients_max
    }

    /// Connections of a group of the default size.
    pub fn group_size(&self) -> u32 {
        self.config.group_size
    }

    /// Blocks per zone.
    pub fn window(&self) -> u32 {
        self.config.window
    }

    /// How connections are given blocks.
    pub fn mapping(&self) -> Mapping {
        self.config.mapping
    }

    /// Largest request payload in bytes.
    pub fn request_max_bytes(&self) -> usize {
        self.config.request_max_bytes as usize
    }

    /// Largest response payload in bytes.
    pub fn response_max_bytes(&self) -> usize {
        self.config.response_max_bytes as usize
    }

    /// Number of pools: two with virtualized mapping, one with static mapping.
    pub fn pools(&self) -> u32 {
        match self.config.mapping {
            Mapping::Virtual => 2,
            Mapping::Static => 1,
        }
    }

    /// Zones of one pool.
    pub fn zones(&self) -> u32 {
        self.zones
    }

    /// Bytes of a zone.
    pub fn zone_bytes(&self) -> usize {
        self.zone_stride
    }

    /// Bytes of a request block, trailer included: whole lines.
    pub fn request_block_bytes(&self) -> usize {
        self.request_block
    }

    /// Bytes of a slot of the response ring, trailer included: whole lines.
    pub fn response_block_bytes(&self) -> usize {
        self.response_block
    }

    /// Slots of a response ring, a power of two.
    pub fn ring_slots(&self) -> u32 {
        self.ring_slots
    }

    /// Blocks of the server's send area.
    pub fn send_slots(&self) -> u32 {
        self.send_slots
    }

    /// Bytes of the server's exposed memory.
    pub fn server_exposed_bytes(&self) -> usize {
        self.server_exposed
    }

    /// Bytes of the server's private memory.
    pub fn server_private_bytes(&self) -> usize {
        self.send_slots as usize * self.response_stride
    }

    /// Bytes of the server's exposed memory that each further seat costs: an endpoint line and a byte
    /// of the demand map. (With static mapping a zone comes on top.)
    pub fn server_bytes_per_client(&self) -> usize {
        LINE + 1
    }

    /// Bytes of a client's exposed memory per connection.
    pub fn client_exposed_bytes(&self) -> usize {
        self.client_exposed
    }

    /// Bytes of a client's private memory per connection.
    pub fn client_private_bytes(&self) -> usize {
        self.client_private
    }

    /// Offset of a seat's byte in the demand map, in the server's exposed memory.
    #[inline]
    pub fn demand_byte(&self, seat: u32) -> usize {
        debug_assert!(seat < self.config.clients_max);
        seat as usize
    }

    /// Offset of a seat's endpoint entry, in the server's exposed memory.
    #[inline]
    pub fn endpoint(&self, seat: u32) -> usize {
        debug_assert!(seat < self.config.clients_max);
        (self.config.clients_max as usize).next_multiple_of(LINE) + seat as usize * LINE
    }

    /// Offset of the first byte after the block for call `call` in a zone, in the server's exposed
    /// memory. The zone is a ring: call n uses block n mod window.
    #[inline]
    pub fn block_end(&self, pool: u32, zone: u32, call: u64) -> usize {
        debug_assert!(pool < self.pools() && zone < self.zones);
        let block = (call & u64::from(self.config.window - 1)) as usize;
        self.pools_at
            + pool as usize * self.pool_bytes
            + zone as usize * self.zone_stride
            + block * self.request_stride
            + self.request_block
    }

    /// Offset of the word in the server's exposed memory that says that the server is asleep: not zero then. Only
    /// back ends whose clients wake their server use it.
    #[inline]
    pub fn server_asleep(&self) -> usize {
        self.server_exposed - LINE
    }

    /// Offset of a send slot, in the server's private memory.
    #[inline]
    pub fn send_slot(&self, slot: u32) -> usize {
        debug_assert!(slot < self.send_slots);
        slot as usize * self.response_stride
    }

    /// Offset of a connection's staging area in its client's exposed memory.
    #[inline]
    pub fn staging(&self, connection: u32) -> usize {
        connection as usize * self.client_exposed
    }

    /// Bytes of a staging area.
    pub fn staging_bytes(&self) -> usize {
        self.config.window as usize * self.request_block
    }

    /// Offset of a connection's response ring in its client's exposed memory.
    #[inline]
    pub fn ring(&self, connection: u32) -> usize {
        self.staging(connection) + self.staging_bytes()
    }

    /// Offset, from the start of a response ring, of the first byte after the slot for `position`.
    #[inline]
    pub fn ring_slot_end(&self, position: u64) -> usize {
        let slot = (position & u64::from(self.ring_slots - 1)) as usize;
        slot * self.response_stride + self.response_block
    }

    /// Offset of a connection's entry image in its client's private memory: the line from which its
    /// endpoint entry is written. The next line holds the words that are written on their own.
    #[inline]
    pub fn entry_image(&self, connection: u32) -> usize {
        connection as usize * self.client_private
    }

    /// Offset of a request slot in the client's private memory. A message starts there; it is
    /// right-aligned only where it lands.
    #[inline]
    pub fn request_slot(&self, connection: u32, slot: u32) -> usize {
        debug_assert!(slot < self.config.window);
        self.entry_image(connection) + 2 * LINE + slot as usize * self.request_stride
    }
}
