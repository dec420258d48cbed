//! Two rings of the crate rtrb for each connection, read in place.

use std::error::Error;
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Apart, BYTE, Load, Runner, Sample, check, take_turn};
use crate::cpus::Cpus;

/// An end of a connection.
struct End {
    to: Producer<u8>,
    from: Consumer<u8>,
}

impl End {
    /// Takes the next message, and puts one of the same size into the other ring, if one has come.
    fn exchange(
        &mut self,
        size: usize,
        fill: impl FnOnce(&[u8], &mut [u8]),
    ) -> Result<bool, Box<dyn Error>> {
        let Ok(message) = self.from.read_chunk(size) else {
            return Ok(false);
        };
        // A ring holds a window of messages, so none is in two parts.
        let mut room = self.to.write_chunk(size)?;
        fill(message.as_slices().0, room.as_mut_slices().0);
        // In this order: who sees the one has room for the next.
        message.commit_all();
        room.commit_all();
        Ok(true)
    }
}

pub(super) struct Rings {
    load: Load,
    cpus: Cpus,
    clients: Apart<Vec<End>>,
    servers: Apart<Vec<End>>,
}

impl Rings {
    pub(super) fn start(load: Load, cpus: Cpus) -> Result<Self, Box<dyn Error>> {
        let (mut clients, mut servers) = (Vec::new(), Vec::new());
        let bytes = (load.size * load.window) as usize;
        for _ in 0..load.connections {
            let (mut to_server, at_server) = RingBuffer::new(bytes);
            let (to_client, at_client) = RingBuffer::new(bytes);
            let mut all = to_server.write_chunk(bytes)?;
            all.as_mut_slices().0.fill(BYTE);
            all.commit_all();
            clients.push(End {
                to: to_server,
                from: at_client,
            });
            servers.push(End {
                to: to_client,
                from: at_server,
            });
        }
        Ok(Self {
            load,
            cpus,
            clients: Apart(clients),
            servers: Apart(servers),
        })
    }
}

impl Runner for Rings {
    fn run(&mut self, warm: Duration, time: Duration) -> Result<Sample, Box<dyn Error>> {
        /// Looks at a connection between two at the clock.
        const LOOKS: usize = 256;
        let Self {
            load,
            clients: Apart(clients),
            servers: Apart(servers),
            ..
        } = self;
        let load = *load;
        let size = load.size as usize;
        let rounds = LOOKS.div_ceil(clients.len());
        let serve = move || {
            for end in servers.iter_mut() {
                for _ in 0..load.window {
                    let answered =
                        end.exchange(size, |request, answer| answer.copy_from_slice(request));
                    // Without room for an answer there is none, which the clients would wait for.
                    if !answered.unwrap_or(false) {
                        break;
                    }
                }
            }
        };
        take_turn(self.cpus, [warm, time], serve, move || {
            let mut answered = 0;
            for _ in 0..rounds {
                for end in clients.iter_mut() {
                    for _ in 0..load.window {
                        let mut right = Ok(());
                        let one = end.exchange(size, |answer, request| {
                            right = check(answer, load);
                            request.fill(BYTE);
                        })?;
                        right?;
                        if !one {
                            break;
                        }
                        answered += 1;
                    }
                }
            }
            Ok(answered)
        })
    }
}
