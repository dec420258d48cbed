//! The metadata service of `scalerpc demo`, with clients that make one kind of call and check each answer.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use scalerpc::{Mapping, Request, Server, Status};
use scalerpc_cli::meta::load::{Expect, Generator, Mix, OWN_NODES};
use scalerpc_cli::meta::service::MetaService;
use scalerpc_cli::meta::tree::Tree;
use scalerpc_cli::nic::Metadata;

use super::tree::Synthetic;
use crate::stage::{Plan, Reply, Work};

pub(super) const REQUEST_MAX_BYTES: usize = 128;
/// A directory of the tree fits one page.
const RESPONSE_MAX_BYTES: usize = 1024;

/// The clients of all sides.
pub(super) struct Clients {
    sides: Vec<Vec<Client>>,
}

struct Client {
    generator: Generator,
    /// Of the call that is outstanding.
    expect: Option<Expect>,
}

impl Work for Clients {
    fn ask(&mut self, side: usize, client: u32, request: &mut [u8]) -> (u16, usize) {
        let client = &mut self.sides[side][client as usize];
        let planned = client.generator.next(request);
        client.expect = Some(planned.expect);
        (planned.method, planned.len)
    }

    fn check(&mut self, side: usize, client: u32, answer: &[u8]) -> Result<(), Box<dyn Error>> {
        let it = &mut self.sides[side][client as usize];
        let expect = it.expect.take().ok_or("an answer that was not asked for")?;
        it.generator.check(&expect, answer).map_err(|wrong| {
            let call = it.generator.describe(&expect);
            format!("client {client}: {call}: {wrong}").into()
        })
    }
}

/// What clients call. A file that is made is removed again, since a server has room for so many: both count.
fn mix(call: Metadata) -> Mix {
    let none = Mix {
        stat: 0,
        readdir: 0,
        mknod: 0,
        rmnod: 0,
    };
    match call {
        Metadata::Stat => Mix { stat: 1, ..none },
        Metadata::ReadDir => Mix { readdir: 1, ..none },
        Metadata::Mknod => Mix {
            mknod: 1,
            rmnod: 1,
            ..none
        },
    }
}

type Handler = Box<dyn FnMut(Request<'_>, &mut [u8]) -> Reply + Send>;
type Made = (Vec<Plan<Handler>>, Clients);

/// A server for each side, and its clients.
pub(super) fn make(call: Metadata, sides: &[(Mapping, u32)]) -> Result<Made, Box<dyn Error>> {
    let (tree, _) = Tree::load_from(&mut Synthetic, Path::new(""), None)?;
    let tree = Arc::new(tree);
    let mut plans: Vec<Plan<Handler>> = Vec::new();
    let mut all = Clients { sides: Vec::new() };
    for &(mapping, clients) in sides {
        let mut service = MetaService::new(tree.clone(), clients * OWN_NODES as u32)?;
        plans.push(Plan {
            builder: Server::builder()
                .clients_max(clients)
                .request_max_bytes(REQUEST_MAX_BYTES as u32)
                .response_max_bytes(RESPONSE_MAX_BYTES as u32)
                .mapping(mapping),
            clients,
            handler: Box::new(move |request: Request<'_>, response: &mut [u8]| {
                service
                    .handle(request.method, request.bytes, response)
                    .map_err(|_| Status::UNKNOWN_METHOD)
            }),
        });
        let client = |n| -> Result<Client, Box<dyn Error>> {
            let (tree, mix) = (tree.clone(), mix(call));
            Ok(Client {
                generator: Generator::new(tree, n, 1, mix, REQUEST_MAX_BYTES, RESPONSE_MAX_BYTES)?,
                expect: None,
            })
        };
        all.sides
            .push((0..clients).map(client).collect::<Result<_, _>>()?);
    }
    Ok((plans, all))
}
