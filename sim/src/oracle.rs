//! What must be true, known independently of the engines.

use std::collections::{HashMap, HashSet};

use scalerpc_core::wire::Status;

use crate::terms::Terms;

/// What a client asked for, made from the connection and the call's number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The method.
    pub method: u16,
    /// The payload.
    pub bytes: Vec<u8>,
}

fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ x >> 33
}

fn fill(seed: u64, len: usize) -> Vec<u8> {
    // Some messages are all ones or all zeros, so that they look like control words.
    match mix(seed) % 8 {
        0 => vec![0xff; len],
        1 => vec![0; len],
        _ => (0..len as u64).map(|i| mix(seed ^ i) as u8).collect(),
    }
}

impl Request {
    /// The request of call `call` of the connection with nonce `owner`.
    pub fn of(owner: u64, call: u64, max: usize) -> Self {
        let seed = mix(owner ^ mix(call));
        let len = (seed % (max as u64 + 1)) as usize;
        Self {
            method: seed as u16,
            bytes: fill(seed, len),
        }
    }

    /// The right answer.
    pub fn answer(&self, max: usize) -> (Status, Vec<u8>) {
        let seed = self
            .bytes
            .iter()
            .fold(u64::from(self.method), |seed, &byte| {
                mix(seed ^ u64::from(byte))
            });
        let len = (seed % (max as u64 + 1)) as usize;
        let status = match seed % 5 {
            0 => Status::application(seed as u8),
            _ => Status::OK,
        };
        (status, fill(seed, len))
    }
}

/// One connection's calls.
#[derive(Debug, Default)]
struct Ledger {
    issued: u64,
    /// Calls that the server has taken, whether they ran or were refused.
    executed: u64,
    ended: u64,
    /// Calls that were not wanted any more.
    cancelled: u64,
    outstanding: HashSet<u64>,
    /// After a switch event: calls later than this one must not run before they are fetched again.
    frozen: Option<u64>,
    terms: Terms,
}

/// The ledgers of all connections that ever were, by nonce.
#[derive(Debug, Default)]
pub struct Oracle {
    ledgers: HashMap<u64, Ledger>,
}

/// A rule that was broken, and how.
pub type Broken = String;

impl Oracle {
    fn ledger(&mut self, owner: u64) -> &mut Ledger {
        self.ledgers.entry(owner).or_default()
    }

    /// A call was accepted.
    pub fn issued(&mut self, owner: u64, call: u64) -> Result<(), Broken> {
        let ledger = self.ledger(owner);
        ledger.issued += 1;
        ledger.outstanding.insert(call);
        if call != ledger.issued {
            return Err(format!(
                "call {call} was accepted as number {}",
                ledger.issued
            ));
        }
        Ok(())
    }

    /// What was agreed about a connection's calls.
    pub fn terms(&mut self, owner: u64) -> &mut Terms {
        &mut self.ledger(owner).terms
    }

    /// A handler runs.
    pub fn executed(&mut self, owner: u64, call: u64, now_ns: u64) -> Result<(), Broken> {
        self.taken(owner, call)?;
        self.terms(owner).ran(call, now_ns)
    }

    /// The server takes a call.
    pub fn taken(&mut self, owner: u64, call: u64) -> Result<(), Broken> {
        let ledger = self.ledger(owner);
        ledger.executed += 1;
        if call != ledger.executed {
            return Err(format!(
                "R2: call {call} ran, but {} was next",
                ledger.executed
            ));
        }
        if call > ledger.issued {
            return Err(format!("R2: call {call} ran, but was never made"));
        }
        if ledger.frozen.is_some_and(|consumed| call > consumed) {
            return Err(format!("R3: call {call} ran after its tenancy"));
        }
        Ok(())
    }

    /// Calls of the connection that were taken.
    pub fn executed_of(&self, owner: u64) -> u64 {
        self.ledgers.get(&owner).map_or(0, |ledger| ledger.executed)
    }

    /// The server has told the connection that calls after `consumed` did not run.
    pub fn switched(&mut self, owner: u64, consumed: u64) -> Result<(), Broken> {
        let ledger = self.ledger(owner);
        ledger.frozen = Some(consumed);
        if consumed != ledger.executed {
            return Err(format!(
                "R3: consumed {consumed}, but {} ran",
                ledger.executed
            ));
        }
        Ok(())
    }

    /// The server fetches calls of the connection.
    pub fn fetched(&mut self, owner: u64) {
        self.ledger(owner).frozen = None;
    }

    /// A call ended: with an answer, or with an error that says whether it may have run.
    /// `posted_max` is the latest call that ever left the client.
    pub fn ended(
        &mut self,
        owner: u64,
        call: u64,
        may_have_run: bool,
        posted_max: u64,
    ) -> Result<(), Broken> {
        let ledger = self.ledger(owner);
        ledger.ended += 1;
        if !ledger.outstanding.remove(&call) {
            return Err(format!(
                "R1: call {call} ended twice, or was not outstanding"
            ));
        }
        if !may_have_run && call <= ledger.executed {
            return Err(format!(
                "R1: call {call} ran, but is said not to have been sent"
            ));
        }
        if may_have_run && call > posted_max {
            return Err(format!(
                "R1: call {call} was never sent, but is said to have run, perhaps"
            ));
        }
        Ok(())
    }

    /// A call was cancelled: it ends without anybody hearing of it.
    pub fn cancelled(&mut self, owner: u64, call: u64) -> Result<(), Broken> {
        let ledger = self.ledger(owner);
        ledger.cancelled += 1;
        match ledger.outstanding.remove(&call) {
            true => Ok(()),
            false => Err(format!("call {call} was cancelled, but not outstanding")),
        }
    }

    /// At any time: issued = ended + cancelled + outstanding.
    pub fn balance(&self, owner: u64) -> Result<usize, Broken> {
        let Some(ledger) = self.ledgers.get(&owner) else {
            return Ok(0);
        };
        let sum = ledger.ended + ledger.cancelled + ledger.outstanding.len() as u64;
        if sum != ledger.issued {
            return Err(format!(
                "R1: {} calls issued, {sum} accounted for",
                ledger.issued
            ));
        }
        Ok(ledger.outstanding.len())
    }
}
