//! Calls over real queue pairs. They need an RDMA device: in a virtual machine, soft-RoCE will do.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use scalerpc::{Client, Request, Server, Status, verbs};

fn echo(request: Request<'_>, response: &mut [u8]) -> Result<usize, Status> {
    response[..request.bytes.len()].copy_from_slice(request.bytes);
    Ok(request.bytes.len())
}

#[test]
#[ignore = "needs an RDMA device"]
fn one_connection() {
    let mut server = Server::builder()
        .clients_max(4)
        .listen_verbs("10.77.0.1:7471", &verbs::ServerOptions::default())
        .unwrap();
    println!("{:?}", server.fabric().report());
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    let thread = std::thread::spawn(move || {
        server.run(&flag, &mut echo);
        println!("{:?}", server.counters());
        println!(
            "{:?} {:?}",
            server.fabric().counters(),
            server.fabric().last_error()
        );
    });
    let mut client =
        Client::connect_verbs("10.77.0.1:7471", &verbs::ClientOptions::default()).unwrap();
    for i in 0..1000_u64 {
        assert_eq!(client.call(1, &i.to_le_bytes()).unwrap(), i.to_le_bytes());
    }
    println!("calls done");
    drop(client);
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
}
