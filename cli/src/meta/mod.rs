//! A metadata server as a workload: what a file system's name space asks of an RPC library.
//!
//! Nothing in here knows a transport. The pieces are:
//!
//! - [`tree`]: a real directory tree, loaded into memory once and never changed.
//! - [`wire`]: requests and responses as bytes.
//! - [`service`]: answers requests from the tree, and keeps the nodes that clients create.
//! - [`load`]: makes random requests and checks every answer against its own copy of the tree.
//!
//! Server and client must have loaded the same tree: compare [`tree::Tree::fingerprint`].
//!
//! ```
//! use scalerpc_cli::meta::{load::{Generator, Mix}, service::MetaService, tree::Tree};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (tree, _report) = Tree::load(env!("CARGO_MANIFEST_DIR").as_ref(), None)?;
//! let tree = Arc::new(tree);
//! let mut service = MetaService::new(Arc::clone(&tree), 64)?;
//! let mut generator = Generator::new(tree, 0, 7, Mix::default(), 256, 512)?;
//! let (mut request, mut response) = ([0; 256], [0; 512]);
//! for _ in 0..1000 {
//!     let planned = generator.next(&mut request);
//!     let len = service
//!         .handle(planned.method, &request[..planned.len], &mut response)
//!         .map_err(|code| format!("method refused: {code}"))?;
//!     generator.check(&planned.expect, &response[..len])?;
//! }
//! # Ok(()) }
//! ```

mod hash;
pub mod load;
pub mod service;
pub mod tree;
pub mod wire;
