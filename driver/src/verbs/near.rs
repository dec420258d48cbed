//! The device for an address: who is reached over TCP at an interface's address is to be reached through the device of
//! that interface.

use std::net::IpAddr;

use super::device::{Host, OpenDevice, Selection};
use super::error::VerbsError;

/// Opens the device that was chosen, or else the one that has `address` as a GID, or else the first usable one.
///
/// Nothing stops if no device has that GID: the two networks may have nothing to do with each other.
pub(super) fn open(
    host: &Host,
    selection: &Selection,
    address: IpAddr,
) -> Result<OpenDevice, VerbsError> {
    let is_open = selection.device.is_none() && selection.port.is_none();
    if is_open && selection.gid_index.is_none() && is_of_an_interface(address) {
        if let Some(found) = find(host, selection, address) {
            return Ok(found);
        }
    }
    host.open(selection)
}

/// False for addresses that any interface may have.
fn is_of_an_interface(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_loopback()
}

fn find(host: &Host, selection: &Selection, address: IpAddr) -> Option<OpenDevice> {
    let wanted = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    host.devices().ok()?.into_iter().find_map(|device| {
        let selection = Selection {
            device: Some(device),
            ..selection.clone()
        };
        let first = host.open(&selection).ok()?;
        let ports = first.attr().phys_port_cnt;
        (1..=ports).find_map(|port| {
            let on_port = Selection {
                port: Some(port),
                ..selection.clone()
            };
            let index = first.index_of(port, wanted)?;
            let on_gid = Selection {
                gid_index: Some(index),
                ..on_port
            };
            host.open(&on_gid).ok()
        })
    })
}

impl OpenDevice {
    /// The index of the routable GID of a port that is this address.
    fn index_of(&self, port: u8, address: std::net::Ipv6Addr) -> Option<u32> {
        let attr = self.context().query_port(port).ok()?;
        let entries = u32::try_from(attr.gid_tbl_len).unwrap_or(0);
        (0..entries).find(|&index| {
            let gid = self.context().query_gid_ex(port, index);
            gid.is_ok_and(|gid| gid.is_routable() && gid.address() == address)
        })
    }
}
