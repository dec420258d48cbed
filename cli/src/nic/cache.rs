//! The cache of a NIC: what was not used for the longest time goes first.

use lru::LruCache;

/// What a NIC keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Item {
    /// The context of a connection on which it sends.
    Context(u32),
    /// The work queue elements of that connection.
    Wqes(u32),
    /// The translation of a page.
    Page(u32),
}

/// See the [module](self).
pub(super) struct Cache {
    items: LruCache<Item, usize>,
    free_bytes: usize,
    misses: u64,
}

impl Cache {
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            items: LruCache::unbounded(),
            free_bytes: bytes,
            misses: 0,
        }
    }

    /// Uses an item; a miss reads it, and drops others for it. How many reads that took: 0 or 1.
    pub(super) fn touch(&mut self, item: Item, bytes: usize) -> u32 {
        if self.items.get(&item).is_some() {
            return 0;
        }
        self.misses += 1;
        while self.free_bytes < bytes {
            match self.items.pop_lru() {
                Some((_, freed)) => self.free_bytes += freed,
                // It does not fit at all.
                None => return 1,
            }
        }
        self.free_bytes -= bytes;
        self.items.put(item, bytes);
        1
    }

    /// Reads since the last time that this was asked.
    pub(super) fn take_misses(&mut self) -> u64 {
        std::mem::take(&mut self.misses)
    }
}

#[cfg(test)]
mod tests {
    use super::{Cache, Item};

    #[test]
    fn what_was_used_last_stays() {
        let mut cache = Cache::new(100);
        assert_eq!(cache.touch(Item::Page(0), 40), 1);
        assert_eq!(cache.touch(Item::Page(1), 40), 1);
        assert_eq!(cache.touch(Item::Page(0), 40), 0);
        // Room for two: the one that was not used again goes.
        assert_eq!(cache.touch(Item::Page(2), 40), 1);
        assert_eq!(cache.touch(Item::Page(0), 40), 0);
        assert_eq!(cache.touch(Item::Page(1), 40), 1);
        assert_eq!(cache.take_misses(), 4);
        assert_eq!(cache.take_misses(), 0);
    }

    #[test]
    fn what_is_too_large_is_read_each_time() {
        let mut cache = Cache::new(100);
        assert_eq!(cache.touch(Item::Page(0), 101), 1);
        assert_eq!(cache.touch(Item::Page(0), 101), 1);
    }
}
