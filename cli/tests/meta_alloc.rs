//! No request allocates: neither to be made, nor to be answered, nor to be judged.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;

use common::mixed;
use scalerpc_cli::meta::load::{Generator, Mix};
use scalerpc_cli::meta::service::MetaService;
use scalerpc_cli::meta::wire::{METHOD_READDIR, METHOD_STAT, Method};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn no_call_allocates() {
    let before = ALLOCATIONS.get();
    let tree = Arc::new(mixed().load());
    assert!(ALLOCATIONS.get() > before, "nothing is counted");
    let mut service = MetaService::new(Arc::clone(&tree), 200).unwrap();
    let mut generators: Vec<_> = (0..4)
        .map(|client| Generator::new(Arc::clone(&tree), client, 1, Mix::default(), 600, 600))
        .collect::<Result<_, _>>()
        .unwrap();
    let (mut request, mut response) = ([0; 600], [0; 600]);
    let before = ALLOCATIONS.get();
    for step in 0..50_000_u32 {
        let generator = &mut generators[step as usize % 4];
        let planned = generator.next(&mut request);
        let len = service
            .handle(planned.method, &request[..planned.len], &mut response)
            .unwrap();
        if step % 100 == 99 {
            generator.forget(&planned.expect);
        } else {
            generator.check(&planned.expect, &response[..len]).unwrap();
        }
        // What is wrong with a request or an answer must not cost more.
        let _ = service.handle(step as u16, &request[..planned.len / 2], &mut response);
    }
    assert_eq!(ALLOCATIONS.get(), before);
    let counters = service.counters();
    assert!(counters.ok.iter().all(|ok| *ok > 1000), "{counters:?}");
    assert!(counters.bad_requests > 0 && counters.unknown_methods > 0);
    assert!(METHOD_STAT == Method::Stat as u16 && METHOD_READDIR == Method::ReadDir as u16);
}
