//! The endpoint entry and its demand byte: staged calls, entry and byte become visible in this order.

use loom::thread;
use scalerpc_core::Memory;
use scalerpc_tests_loom::message::{entry, poll};
use scalerpc_tests_loom::{Model, Mutant, Mutation, Op, Party, Place, Step, World, seen};

use super::{TORN, TRIES};

const NOTHING: &[&str] = &["the byte is there, and its entry is not"];

/// The client stages call 1, writes its entry, and then its byte.
fn announce(client: &World) {
    let mutation = client.mutation;
    let entry = entry(0, 1, client.geometry.staging(0));
    if !mutation.skips(Step::StageBeforeEntry) {
        client.stage(0, 1);
    }
    if mutation.skips(Step::EntryBeforeDemand) {
        client.write_demand(0, 1);
    }
    client.write_entry(0, &entry, 1);
    client.write_demand(0, 1);
    if mutation.skips(Step::StageBeforeEntry) {
        client.stage(0, 1);
    }
}

/// The server has seen the entry: everything that it names is there.
fn fetch(server: &World) {
    server.fetch(0, 1);
    assert!(
        server.call(0, 1).is_some(),
        "torn batch: the staged call is not there"
    );
    seen("the staged call");
}

/// The byte is what the server looks at first; when it has changed the entry is there, and whole.
fn by_the_byte(mutation: Mutation) {
    let world = World::new(1, mutation);
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let other = thread::spawn(move || announce(&client));
    let byte = server.geometry.demand_byte(0);
    let changed = || (server.server.load_byte_acquire(byte) == 1).then_some(());
    if poll(TRIES, changed).is_some() {
        let wanted = entry(0, 1, server.geometry.staging(0));
        let there = server.entry(0, &wanted, 1).is_some();
        assert!(there, "the byte is there, and its entry is not");
        fetch(&server);
    }
    other.join().expect("the other thread ended");
}

#[test]
fn a_demand_byte_announces_an_entry() {
    Model {
        name: "entry, by its byte",
        bound: None,
        body: by_the_byte,
        must_see: &["the staged call"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::ByteStoreRelease, Place::Demand, NOTHING),
            Mutant::weaken(Party::Server, Op::ByteLoadAcquire, Place::Demand, NOTHING),
            Mutant::skip(Step::EntryBeforeDemand, NOTHING),
            Mutant::skip(Step::StageBeforeEntry, TORN),
        ],
    }
    .check();
}

/// The server looks again and again at a seat whose byte it has not accepted, so it may see the entry
/// before this byte: the entry's own number has to be enough.
fn by_its_number(mutation: Mutation) {
    let world = World::new(1, mutation);
    let (client, server) = (world.seen_by(Party::Client), world.seen_by(Party::Server));
    let other = thread::spawn(move || announce(&client));
    let wanted = entry(0, 1, server.geometry.staging(0));
    if poll(TRIES, || server.entry(0, &wanted, 1)).is_some() {
        fetch(&server);
    }
    other.join().expect("the other thread ended");
}

#[test]
fn an_entry_stands_by_itself() {
    Model {
        name: "entry, by its number",
        bound: None,
        body: by_its_number,
        must_see: &["the staged call"],
        mutants: &[
            Mutant::weaken(Party::Client, Op::StoreRelease, Place::Entry, TORN),
            Mutant::weaken(Party::Client, Op::LastWordLast, Place::Entry, TORN),
            Mutant::weaken(Party::Server, Op::LoadAcquire, Place::Entry, TORN),
            Mutant::skip(Step::StageBeforeEntry, TORN),
        ],
    }
    .check();
}
