//! The judgement of an answer.

use super::marker::Marker;
use super::own::{SlotId, bit, each};
use super::{Expect, Expected, Generator};
use crate::meta::tree::NodeId;
use crate::meta::wire::{self, Attr, Kind, Malformed, Method, Page, Status, cookie};

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WrongAnswer {
    /// It cannot be decoded.
    #[error("the answer to {method} is malformed: {why}")]
    Malformed {
        /// The method that was called.
        method: Method,
        /// How it is malformed.
        why: Malformed,
    },
    /// It has another status.
    #[error("the answer to {method} is '{got}' and not '{expected}'")]
    Status {
        /// The method that was called.
        method: Method,
        /// The only right status.
        expected: Status,
        /// The status of the answer.
        got: Status,
    },
    /// An attribute has another value.
    #[error("{attribute} is {got} and not {expected}")]
    Attribute {
        /// Which.
        attribute: &'static str,
        /// The only right value.
        expected: i128,
        /// The value in the answer.
        got: i128,
    },
    /// A created node has a number that it cannot have.
    #[error("a created node has number {got}, {}", expected_number(*expected))]
    Number {
        /// The number it had before; nothing where the number is impossible or out of order.
        expected: Option<u64>,
        /// The number in the answer.
        got: u64,
    },
    /// A page of a directory is wrong.
    #[error("entry {position} of the page: {fault}")]
    Page {
        /// The position of the entry on the page, from 0.
        position: u16,
        /// What is wrong with it.
        fault: PageFault,
    },
}

/// What is wrong with an entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageFault {
    /// Another entry of the tree must stand there.
    #[error("has another name than the loaded entry that must stand there")]
    Name,
    /// It is of another kind.
    #[error("is a {got} and not a {expected}")]
    Kind {
        /// The only right kind.
        expected: Kind,
        /// The kind in the answer.
        got: Kind,
    },
    /// It was neither loaded nor created by any client.
    #[error("is nothing that was loaded or that a client creates")]
    Unknown,
    /// It is a node of this client that must not be there.
    #[error("is a node of this client that is not there, or comes before the page")]
    Unexpected,
    /// It is a node of this client and comes after a younger one, or again.
    #[error("is a node of this client out of order")]
    Order,
    /// The page ends the directory, but loaded entries are missing.
    #[error("is missing, though it was loaded")]
    MissingLoaded,
    /// A node of this client is missing.
    #[error("a node of this client is missing before it")]
    MissingCreated,
    /// It is where the next page begins, and the cookie says otherwise.
    #[error("is not where the next page begins")]
    Next,
}

fn expected_number(expected: Option<u64>) -> String {
    match expected {
        Some(number) => format!("and had {number} before"),
        None => "which is impossible or out of order".to_owned(),
    }
}

type Verdict = Result<(), WrongAnswer>;

impl Generator {
    /// Judges the response to a call.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&mut self, expect: &Expect, response: &[u8]) -> Result<(), WrongAnswer> {
        let verdict = self.judge(expect, response);
        match &verdict {
            Ok(()) => self.counters.right += 1,
            Err(_) => {
                self.counters.wrong += 1;
                // One wrong answer must not make those wrong that follow from it.
                match expect.0 {
                    Expected::Mknod { slot } => self.own.shake(slot),
                    Expected::Rmnod { slot } => self.own.revive(slot),
                    _ => {}
                }
            }
        }
        self.own.release(expect.slots());
        verdict
    }

    fn judge(&mut self, expect: &Expect, response: &[u8]) -> Verdict {
        let method = expect.method();
        let malformed = |why| WrongAnswer::Malformed { method, why };
        match expect.0 {
            Expected::Stat { node } => {
                let answer = wire::decode_attr(response).map_err(malformed)?;
                let attr = answer.map_err(|got| wrong_status(method, Status::Ok, got))?;
                same_attr(&self.tree.attr(node), &attr)
            }
            Expected::OwnStat { slot, present } => {
                let answer = wire::decode_attr(response).map_err(malformed)?;
                self.judge_own_stat(slot, present, answer)
            }
            Expected::Page { dir, cookie, live } => {
                let answer = wire::decode_page(response).map_err(malformed)?;
                let page = answer.map_err(|got| wrong_status(method, Status::Ok, got))?;
                self.judge_page(dir, cookie, live, &page)?;
                if page.next != 0 {
                    self.follow = Some((dir, page.next));
                }
                Ok(())
            }
            Expected::Mknod { slot } => match wire::decode_number(response).map_err(malformed)? {
                Ok(number) => self.own.learn(slot, number),
                Err(Status::NoSpace) => {
                    self.counters.no_space += 1;
                    self.own.shake(slot);
                    Ok(())
                }
                Err(got) => Err(wrong_status(method, Status::Ok, got)),
            },
            Expected::Rmnod { slot } => match wire::decode_number(response).map_err(malformed)? {
                Ok(number) => self.own.learn(slot, number),
                Err(Status::NotFound) if self.own.is_shaky(slot) => {
                    self.own.add_ghost(slot);
                    Ok(())
                }
                Err(got) => Err(wrong_status(method, Status::Ok, got)),
            },
            Expected::Refused {
                status: expected, ..
            } => {
                let got = refusal(method, response).map_err(malformed)?;
                if got == expected {
                    Ok(())
                } else {
                    Err(wrong_status(method, expected, got))
                }
            }
        }
    }

    fn judge_own_stat(
        &mut self,
        slot: SlotId,
        present: bool,
        answer: wire::Answer<Attr>,
    ) -> Verdict {
        let shaky = self.own.is_shaky(slot);
        match answer {
            Ok(attr) if present || shaky => {
                same_attr(&Attr::created(attr.number), &attr)?;
                self.own.learn(slot, attr.number)
            }
            Err(Status::NotFound) if !present || shaky => Ok(()),
            other => {
                let expected = if present {
                    Status::Ok
                } else {
                    Status::NotFound
                };
                let got = other.err().unwrap_or(Status::Ok);
                Err(wrong_status(Method::Stat, expected, got))
            }
        }
    }

    fn judge_page(&self, dir: NodeId, cookie: u64, live: u64, page: &Page<'_>) -> Verdict {
        let children = self.tree.child_count(dir);
        let after = cookie::created(cookie).map(|(_, number)| number);
        let start = match after {
            Some(_) => children,
            None => usize::try_from(cookie).unwrap_or(children).min(children),
        };
        let mut created = CreatedPart {
            dir,
            after,
            live,
            seen: 0,
            last_n: 0,
            last: None,
        };
        for (position, (kind, name)) in (0_u16..).zip(page.entries()) {
            let loaded = self.tree.child_at(dir, start + usize::from(position));
            let judged = match loaded {
                Some(id) if self.tree.name(id) != name => Err(PageFault::Name),
                Some(id) => same_kind(self.tree.kind(id), kind),
                None => self.judge_created(&mut created, kind, name),
            };
            judged.map_err(|fault| WrongAnswer::Page { position, fault })?;
        }
        self.judge_end(&created, start, page)
            .map_err(|fault| WrongAnswer::Page {
                position: page.count,
                fault,
            })
    }

    fn judge_created(
        &self,
        part: &mut CreatedPart,
        kind: Kind,
        name: &[u8],
    ) -> Result<(), PageFault> {
        let (client, n) = Marker::parse(name).ok_or(PageFault::Unknown)?;
        same_kind(Kind::File, kind)?;
        part.last = None;
        if client != self.client {
            return Ok(());
        }
        let Some(slot) = self.own.find(n, part.dir) else {
            return if self.own.is_ghost(n) {
                Ok(())
            } else {
                Err(PageFault::Unexpected)
            };
        };
        part.last = Some(slot);
        if self.own.is_shaky(slot) {
            return Ok(());
        }
        if part.live & bit(slot) == 0 {
            return Err(PageFault::Unexpected);
        }
        if n <= part.last_n {
            return Err(PageFault::Order);
        }
        if let (Some(after), Some(number)) = (part.after, self.own.number(slot)) {
            if number <= after {
                return Err(PageFault::Unexpected);
            }
        }
        part.last_n = n;
        part.seen |= bit(slot);
        Ok(())
    }

    /// Whether the page ends where it may.
    fn judge_end(
        &self,
        part: &CreatedPart,
        start: usize,
        page: &Page<'_>,
    ) -> Result<(), PageFault> {
        let left = self.tree.child_count(part.dir) - start;
        let listed = usize::from(page.count);
        if page.next == 0 && listed < left {
            return Err(PageFault::MissingLoaded);
        }
        if page.next != 0 {
            let right = match cookie::created(page.next) {
                // Still, or just no more, among the loaded entries.
                None => listed > 0 && listed <= left && page.next == (start + listed) as u64,
                Some((_, number)) => {
                    let known = part.last.and_then(|slot| self.own.number(slot));
                    listed > left
                        && known.is_none_or(|known| known == number)
                        && part.after.is_none_or(|after| number > after)
                }
            };
            if !right {
                return Err(PageFault::Next);
            }
        }
        let mut missing = false;
        let next = cookie::created(page.next).map_or(0, |(_, number)| number);
        each(part.live & !part.seen & !self.own.shaky(), |slot| {
            let number = self.own.number(slot);
            let begun = part
                .after
                .is_none_or(|after| number.is_some_and(|it| it > after));
            // The page goes on to its end, to a younger own node, or past this node's number.
            let reached = page.next == 0
                || self.own.n(slot) < part.last_n
                || number.is_some_and(|number| number <= next);
            missing |= begun && reached;
        });
        if missing {
            Err(PageFault::MissingCreated)
        } else {
            Ok(())
        }
    }
}

/// What a page has shown so far of the created nodes.
struct CreatedPart {
    dir: NodeId,
    /// The page begins after the node with this number, and not at a loaded entry.
    after: Option<u64>,
    /// Own nodes that must be there.
    live: u64,
    /// Those of them that were.
    seen: u64,
    last_n: u64,
    /// The last entry, where it is an own node.
    last: Option<SlotId>,
}

fn wrong_status(method: Method, expected: Status, got: Status) -> WrongAnswer {
    WrongAnswer::Status {
        method,
        expected,
        got,
    }
}

/// The status of a response that must be no more than that.
fn refusal(method: Method, response: &[u8]) -> Result<Status, Malformed> {
    let answer = match method {
        Method::Stat => wire::decode_attr(response)?.map(|_| ()),
        Method::ReadDir => wire::decode_page(response)?.map(|_| ()),
        Method::Mknod | Method::Rmnod => wire::decode_number(response)?.map(|_| ()),
    };
    Ok(answer.err().unwrap_or(Status::Ok))
}

fn same_kind(expected: Kind, got: Kind) -> Result<(), PageFault> {
    if expected == got {
        Ok(())
    } else {
        Err(PageFault::Kind { expected, got })
    }
}

fn same_attr(expected: &Attr, got: &Attr) -> Verdict {
    if expected == got {
        return Ok(());
    }
    let values = |attr: &Attr| {
        [
            ("kind", i128::from(attr.kind as u8)),
            ("mode", i128::from(attr.mode)),
            ("uid", i128::from(attr.uid)),
            ("gid", i128::from(attr.gid)),
            ("size", i128::from(attr.size)),
            ("mtime_ns", i128::from(attr.mtime_ns)),
            ("ino", i128::from(attr.ino)),
            ("number", i128::from(attr.number)),
        ]
    };
    for ((attribute, expected), (_, got)) in values(expected).into_iter().zip(values(got)) {
        if expected != got {
            return Err(WrongAnswer::Attribute {
                attribute,
                expected,
                got,
            });
        }
    }
    Ok(())
}
