//! Who may have how many calls run.

use scalerpc_core::server::Limit;
use scalerpc_driver::Fabric;

use super::Server;

impl<F: Fabric> Server<F> {
    /// Limits the calls of a connection from now on; `None`: no more. A call above the limit does not run, and is answered
    /// with [`Status::BUSY`](crate::Status::BUSY) at once. The limit holds until the connection ends. False if there is
    /// no such connection.
    pub fn set_limit(&mut self, seat: u32, limit: Option<Limit>) -> bool {
        self.engine.set_limit(seat, limit)
    }

    /// How many calls may be in flight from now on: see
    /// [`ServerBuilder::calls_in_flight_max`](super::ServerBuilder::calls_in_flight_max). With 0 no call runs any more, so
    /// a server that is to stop can see those that are in flight to their end, while clients are told to go elsewhere.
    pub fn set_calls_in_flight_max(&mut self, calls: u32) {
        self.engine.set_calls_in_flight_max(calls);
    }

    /// Calls that are in flight now, those of connections that ended meanwhile included.
    pub fn calls_in_flight(&self) -> u32 {
        self.engine.calls_in_flight()
    }
}
