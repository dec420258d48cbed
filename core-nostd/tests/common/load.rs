//! What clients do to a server, for tests that want it busy.

use std::ops::Range;

use scalerpc_core::client::ClientState;

use super::Rig;

impl Rig {
    /// A turn in which these clients fill their windows.
    pub fn busy_turn(&mut self, busy: Range<u32>) {
        for seat in busy {
            while self.call(seat, b"busy").is_ok() {}
        }
        self.clients_turn();
        for _ in 0..4 {
            if !self.act() {
                self.now_ns += 200;
            }
        }
    }

    /// The call that a client has just made is on its way when its slice ends, for the sake of `other`; the client
    /// hears that it is over.
    pub fn lose_the_slice_on_the_way(&mut self, seat: u32, other: u32) {
        self.post(seat);
        self.client(seat).stopped = true;
        self.call(other, b"x").unwrap();
        self.turn(200_000);
        self.settle();
        self.poll(seat);
        assert_eq!(self.client(seat).engine.state(), ClientState::Idle);
    }
}
