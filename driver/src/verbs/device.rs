//! Which device, port and GID to use.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rdma_core_sys::{
    IBV_LINK_LAYER_ETHERNET, IBV_LINK_LAYER_INFINIBAND, IBV_LINK_LAYER_UNSPECIFIED,
    IBV_PORT_ACTIVE, IBV_PORT_ACTIVE_DEFER, IBV_PORT_ARMED, IBV_PORT_DOWN, IBV_PORT_INIT,
    IBV_QPF_GRH_REQUIRED, Verbs, ibv_ah_attr, ibv_device_attr, ibv_port_attr, ibv_port_state,
};

use super::context::{Context, DeviceList};
use super::errno::Errno;
use super::error::{NoDevice, Place, Step, VerbsError};
use super::gid::{self, Gid, GidKind};
use super::mtu::Mtu;
use crate::host;

/// What the user chose. What is `None` is chosen for him.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Name of the device.
    pub device: Option<String>,
    /// Number of the port, from 1.
    pub port: Option<u8>,
    /// Index of the GID in the port's table.
    pub gid_index: Option<u32>,
    /// Path MTU, at most that of the port.
    pub mtu: Option<Mtu>,
}

/// A device or port that was passed over, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The device.
    pub device: String,
    /// Why; the text names the port.
    pub why: VerbsError,
}

/// Where devices come from: libibverbs, and the system's files about them.
#[derive(Clone, Debug)]
pub struct Host {
    verbs: &'static Verbs,
    sys: PathBuf,
    dev: PathBuf,
}

impl Host {
    /// This machine, with libibverbs as it is installed.
    ///
    /// # Errors
    ///
    /// [`NoDevice::NoLibrary`].
    pub fn load() -> Result<Self, VerbsError> {
        let verbs = Verbs::load().map_err(NoDevice::NoLibrary)?;
        Ok(Self::new(verbs, Path::new("/sys"), Path::new("/dev")))
    }

    /// Verbs from elsewhere, with sysfs and device files in these folders.
    #[must_use]
    pub fn new(verbs: &'static Verbs, sys: &Path, dev: &Path) -> Self {
        Self {
            verbs,
            sys: sys.to_owned(),
            dev: dev.to_owned(),
        }
    }

    /// The file that libibverbs was loaded from: its name ends with its version. `None` if it is no file.
    #[must_use]
    pub fn library_file() -> Option<PathBuf> {
        let maps = fs::read_to_string("/proc/self/maps").ok()?;
        let mut paths = maps
            .lines()
            .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
        let is_it = |path: &&Path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("libibverbs.so"))
        };
        paths.find(is_it).map(Path::to_owned)
    }

    /// The names of the devices that libibverbs lists.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoDevice`] if there are none.
    pub fn devices(&self) -> Result<Vec<String>, VerbsError> {
        self.list().map(|list| list.names())
    }

    /// Opens the device that was chosen, or the first that has a usable port.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub fn open(&self, selection: &Selection) -> Result<OpenDevice, VerbsError> {
        let list = self.list()?;
        let mut skipped = Vec::new();
        let mut is_known = false;
        for index in 0..list.len() {
            let name = list.name(index);
            if selection
                .device
                .as_ref()
                .is_some_and(|wanted| *wanted != name)
            {
                continue;
            }
            is_known = true;
            match self.open_device(&list, index, selection, &mut skipped) {
                Ok(Some(open)) => return Ok(OpenDevice { skipped, ..open }),
                Ok(None) => {}
                Err(why) => skipped.push(Skipped { device: name, why }),
            }
        }
        if let (false, Some(wanted)) = (is_known, &selection.device) {
            return Err(VerbsError::UnknownDevice {
                wanted: wanted.clone(),
                present: list.names(),
            });
        }
        Err(self.none_usable(&list, skipped))
    }

    /// Why there is nothing to use, where every device or port was passed over for a reason.
    fn none_usable(&self, list: &DeviceList, mut skipped: Vec<Skipped>) -> VerbsError {
        // The library says ENOENT for a file that may not be opened, too: it goes on to look for others.
        let no_file = |skipped: &Skipped| {
            matches!(
                skipped.why,
                VerbsError::Failed {
                    step: Step::Open,
                    errno: Errno(libc::EACCES | libc::EPERM | libc::ENOENT),
                    ..
                }
            )
        };
        if !skipped.is_empty() && skipped.iter().all(no_file) {
            if let Some(why) = self.why_no_file(list.names()) {
                return why.into();
            }
        }
        match skipped.len() {
            1 => skipped.remove(0).why,
            _ => VerbsError::NoUsablePort(skipped.into_iter().map(|one| one.why).collect()),
        }
    }

    fn list(&self) -> Result<DeviceList, VerbsError> {
        match DeviceList::new(self.verbs) {
            Ok(list) if list.len() > 0 => Ok(list),
            // The library says ENOSYS for a kernel without RDMA.
            Ok(_) | Err(Errno(libc::ENOSYS)) => Err(self.why_no_device().into()),
            Err(errno) => Err(VerbsError::failed(
                Step::List,
                "ibv_get_device_list",
                Place::default(),
                errno,
            )),
        }
    }

    fn why_no_device(&self) -> NoDevice {
        let devices = host::rdma_devices(&self.sys);
        if devices.is_empty() {
            return NoDevice::NoneInKernel {
                sysfs: self.sys.join("class/infiniband"),
            };
        }
        self.why_no_file(devices.clone())
            .unwrap_or(NoDevice::NoProvider { devices })
    }

    /// What is wrong with the devices' files; `None` if this process may open some.
    fn why_no_file(&self, devices: Vec<String>) -> Option<NoDevice> {
        let files = host::uverbs_files(&self.dev);
        if files.is_empty() {
            return Some(NoDevice::NoFiles {
                devices,
                missing: self.dev.join("infiniband/uverbs*"),
            });
        }
        let closed = !files.iter().any(|file| host::can_open(file));
        closed.then_some(NoDevice::NotPermitted { devices, files })
    }

    /// Opens a device. `None` if no port of it will do; why is in `skipped` then.
    fn open_device(
        &self,
        list: &DeviceList,
        index: usize,
        selection: &Selection,
        skipped: &mut Vec<Skipped>,
    ) -> Result<Option<OpenDevice>, VerbsError> {
        let device = list.name(index);
        if !list.is_infiniband(index) {
            return Err(VerbsError::WrongTransport { device });
        }
        let failed = |step, verb| {
            let place = Place::device(&device);
            move |errno| VerbsError::failed(step, verb, place, errno)
        };
        let context = list
            .open(index)
            .map_err(failed(Step::Open, "ibv_open_device"))?;
        let attr = context
            .query_device()
            .map_err(failed(Step::Device, "ibv_query_device"))?;
        let ports = attr.phys_port_cnt;
        let candidates = match selection.port {
            Some(port) if (1..=ports).contains(&port) => port..=port,
            None if ports > 0 => 1..=ports,
            wrong => {
                let port = wrong.unwrap_or(1);
                return Err(VerbsError::NoSuchPort {
                    device,
                    port,
                    ports,
                });
            }
        };
        for number in candidates {
            match self.choose(&context, number, selection) {
                Ok((port, gid, mtu)) => {
                    return Ok(Some(OpenDevice {
                        context: Arc::new(context),
                        attr,
                        port,
                        gid,
                        is_global: selection.gid_index.is_some(),
                        mtu,
                        skipped: Vec::new(),
                    }));
                }
                Err(why) => skipped.push(Skipped {
                    device: device.clone(),
                    why,
                }),
            }
        }
        Ok(None)
    }

    /// Whether a port will do, and with which GID and MTU.
    fn choose(
        &self,
        context: &Context,
        number: u8,
        selection: &Selection,
    ) -> Result<(Port, Gid, Mtu), VerbsError> {
        let device = context.name().to_owned();
        let attr = context.query_port(number).map_err(|errno| {
            let place = Place {
                port: Some(number),
                ..Place::device(&device)
            };
            VerbsError::failed(Step::Port, "ibv_query_port", place, errno)
        })?;
        let port = Port { number, attr };
        if !port.is_active() {
            return Err(VerbsError::PortNotActive {
                device,
                port: number,
                state: port.state(),
                is_ethernet: port.link_layer() == LinkLayer::Ethernet,
            });
        }
        let table = self.gids(context, &port);
        let gid = match (selection.gid_index, port.link_layer()) {
            (Some(index), _) => {
                let found = table.iter().find(|gid| gid.index == index).copied();
                found.ok_or(VerbsError::NoSuchGid {
                    device: device.clone(),
                    port: number,
                    index,
                    entries: port.gid_entries(),
                    seen: table,
                })?
            }
            (None, LinkLayer::Ethernet) => gid::choose(&table).ok_or(VerbsError::NoUsableGid {
                device: device.clone(),
                port: number,
                seen: table,
            })?,
            // The first is always there; where LIDs route, nobody needs it.
            (None, _) => table
                .iter()
                .find(|gid| gid.index == 0)
                .copied()
                .unwrap_or(Gid {
                    index: 0,
                    bytes: [0; 16],
                    kind: GidKind::Ib,
                }),
        };
        // A value that the headers do not define is a larger one.
        let active = port.active_mtu();
        match selection.mtu {
            Some(wanted) if wanted > active => Err(VerbsError::MtuTooLarge {
                device,
                port: number,
                wanted,
                active,
            }),
            wanted => Ok((port, gid, wanted.unwrap_or(active))),
        }
    }

    /// The entries of a port's table that are in use and can be read.
    fn gids(&self, context: &Context, port: &Port) -> Vec<Gid> {
        let entry = |index| match context.query_gid_ex(port.number, index) {
            Ok(gid) => Some(gid),
            // The library knows nothing of kinds; the kernel does.
            Err(Errno(libc::EOPNOTSUPP)) => {
                let bytes = context.query_gid(port.number, index).ok()?;
                let kind = self.gid_kind(context.name(), port, index)?;
                Some(Gid { index, bytes, kind })
            }
            // A hole, or one that vanished meanwhile.
            Err(_) => None,
        };
        (0..port.gid_entries())
            .filter_map(entry)
            .filter(|gid| !gid.is_zero())
            .collect()
    }

    fn gid_kind(&self, device: &str, port: &Port, index: u32) -> Option<GidKind> {
        let is_ethernet = port.link_layer() == LinkLayer::Ethernet;
        let file = format!(
            "class/infiniband/{device}/ports/{}/gid_attrs/types/{index}",
            port.number
        );
        match fs::read_to_string(self.sys.join(file)) {
            Ok(text) => GidKind::from_sysfs(&text, is_ethernet),
            // InfiniBand has one kind only.
            Err(_) if !is_ethernet => Some(GidKind::Ib),
            Err(_) => None,
        }
    }
}

/// What carries a port's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkLayer {
    /// InfiniBand: a subnet manager gives each port a LID.
    InfiniBand,
    /// Ethernet: RoCE.
    Ethernet,
}

impl std::fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::InfiniBand => "InfiniBand",
            Self::Ethernet => "Ethernet",
        })
    }
}

/// A port, as it was when the device was opened.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    number: u8,
    attr: ibv_port_attr,
}

impl Port {
    /// Its number, from 1.
    #[must_use]
    pub fn number(&self) -> u8 {
        self.number
    }

    /// All that libibverbs says about it.
    #[must_use]
    pub fn attr(&self) -> &ibv_port_attr {
        &self.attr
    }

    /// What carries its packets.
    #[must_use]
    pub fn link_layer(&self) -> LinkLayer {
        match u32::from(self.attr.link_layer) {
            IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            // Before there was another.
            IBV_LINK_LAYER_UNSPECIFIED | IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
            _ => LinkLayer::InfiniBand,
        }
    }

    /// True if it can carry packets.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.attr.state == IBV_PORT_ACTIVE
    }

    /// Its state, in the words of the specification.
    #[must_use]
    pub fn state(&self) -> &'static str {
        state_name(self.attr.state)
    }

    /// Largest payload of a packet.
    #[must_use]
    pub fn active_mtu(&self) -> Mtu {
        Mtu::from_verbs(self.attr.active_mtu).unwrap_or(Mtu::Bytes4096)
    }

    /// Its address in an InfiniBand subnet; 0 on Ethernet.
    #[must_use]
    pub fn lid(&self) -> u16 {
        self.attr.lid
    }

    fn gid_entries(&self) -> u32 {
        // The index in a work request has 8 bits.
        u32::try_from(self.attr.gid_tbl_len).unwrap_or(0).min(256)
    }
}

fn state_name(state: ibv_port_state) -> &'static str {
    match state {
        IBV_PORT_DOWN => "DOWN",
        IBV_PORT_INIT => "INIT",
        IBV_PORT_ARMED => "ARMED",
        IBV_PORT_ACTIVE => "ACTIVE",
        IBV_PORT_ACTIVE_DEFER => "ACTIVE_DEFER",
        _ => "in a state that is not known",
    }
}

/// What a device can do, as far as this back end needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests of one queue.
    pub max_qp_wr: u32,
    /// Elements of a scatter list.
    pub max_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Completions of one queue.
    pub max_cqe: u32,
    /// Registrations of memory.
    pub max_mr: u32,
    /// Bytes of one registration.
    pub max_mr_size: u64,
    /// READs that a queue pair can serve at once.
    pub max_qp_rd_atom: u8,
    /// READs that a queue pair can have outstanding.
    pub max_qp_init_rd_atom: u8,
}

/// An open device, and which port and GID to use. All that is done with it uses these.
#[derive(Debug)]
pub struct OpenDevice {
    context: Arc<Context>,
    attr: ibv_device_attr,
    port: Port,
    gid: Gid,
    is_global: bool,
    mtu: Mtu,
    skipped: Vec<Skipped>,
}

impl OpenDevice {
    /// The device's context; it stays open as long as anybody has it.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.context.name()
    }

    /// The version of its firmware; empty for one that has none.
    #[must_use]
    pub fn firmware(&self) -> String {
        let bytes = self.attr.fw_ver.iter().map(|&byte| byte as u8);
        let bytes: Vec<u8> = bytes.take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// All that libibverbs says about the device.
    #[must_use]
    pub fn attr(&self) -> &ibv_device_attr {
        &self.attr
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// The GID. Zero for an InfiniBand port without one.
    #[must_use]
    pub fn gid(&self) -> &Gid {
        &self.gid
    }

    /// Largest payload of a packet that this end wants.
    #[must_use]
    pub fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// What was passed over on the way to this port, and why.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// What the device can do. A negative number counts as none.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let depth = |value: i32| u8::try_from(value.max(0)).unwrap_or(u8::MAX);
        let attr = &self.attr;
        Capabilities {
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_sge: count(attr.max_sge),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_mr: count(attr.max_mr),
            max_mr_size: attr.max_mr_size,
            max_qp_rd_atom: depth(attr.max_qp_rd_atom),
            max_qp_init_rd_atom: depth(attr.max_qp_init_rd_atom),
        }
    }

    /// For errors: the device, port, GID and MTU.
    #[must_use]
    pub fn place(&self) -> Place {
        Place {
            device: Some(self.name().to_owned()),
            port: Some(self.port.number),
            gid: Some(self.gid),
            mtu: Some(self.mtu),
            peer: None,
        }
    }

    /// How to reach a peer's port, for `ibv_modify_qp`: by its LID on InfiniBand, by its GID where that is needed.
    #[must_use]
    pub fn route_to(&self, lid: u16, gid: [u8; 16]) -> ibv_ah_attr {
        let is_global = match self.port.link_layer() {
            LinkLayer::Ethernet => true,
            LinkLayer::InfiniBand => {
                self.is_global
                    || self.port.attr.flags & IBV_QPF_GRH_REQUIRED != 0
                    || (gid != [0; 16] && gid[..8] != self.gid.bytes[..8])
            }
        };
        let mut route = ibv_ah_attr {
            port_num: self.port.number,
            dlid: lid,
            ..Default::default()
        };
        if is_global {
            route.is_global = 1;
            route.grh = gid::route(self.gid.index, gid);
        }
        route
    }
}
