//! The methods that a server answers by itself.

use scalerpc_core::Memory;
use scalerpc_core::server::Call;
use scalerpc_core::wire::Status;
use scalerpc_driver::Fabric;

use super::Server;
use crate::observe::{PAGE_MAX_BYTES, SNAPSHOT, Snapshot, SnapshotReader, Source, write_page};

impl<F: Fabric> Server<F> {
    /// Answers a call of one of the library's methods.
    ///
    /// Request and page are copied, since neither is large nor asked for often.
    #[cold]
    pub(super) fn answer_reserved(&mut self, call: Call) {
        let mut request = [0; 8];
        let mut page = [0; PAGE_MAX_BYTES];
        let (exposed, private) = (self.fabric.exposed(), self.fabric.private());
        let reply = if call.method == SNAPSHOT && self.observable && call.request_len == 8 {
            exposed.copy_out(call.request_at, &mut request);
            let room = self.engine.geometry().response_max_bytes();
            let page = &mut page[..room.min(PAGE_MAX_BYTES)];
            self.write_page(Some(call.seat), &request, page)
        } else {
            Err(Status::UNKNOWN_METHOD)
        };
        let (status, len) = match reply {
            Ok(len) => (Status::OK, len),
            Err(status) => (status, 0),
        };
        private.copy_in(call.response_at, &page[..len]);
        if let Some(write) = self.engine.reply(call, status, len, exposed, private) {
            self.post_write(&write);
        }
    }

    fn write_page(
        &self,
        seat: Option<u32>,
        request: &[u8],
        page: &mut [u8],
    ) -> Result<usize, Status> {
        let source = Source {
            engine: &self.engine,
            last_eviction: self.last_eviction,
            place: self.place,
            seat,
        };
        write_page(&source, request, page)
    }

    /// Everything that can be seen of it now; clients see the same: [`observe`](crate::observe).
    ///
    /// It allocates, and takes time that grows with the number of seats.
    pub fn snapshot(&self) -> Snapshot {
        let mut reader = SnapshotReader::new();
        let mut page = [0; PAGE_MAX_BYTES];
        while let Some(request) = reader.request() {
            let taken = match self.write_page(None, &request, &mut page) {
                Ok(len) => reader.take(&page[..len]).is_ok(),
                Err(_) => false,
            };
            debug_assert!(taken, "a server can read its own pages");
            if !taken {
                break;
            }
        }
        reader.finish()
    }
}
