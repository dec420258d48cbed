//! The bindings, by bindgen, from the system's headers.

use std::path::{Path, PathBuf};
use std::{env, fs};

use bindgen::{Builder, CodegenConfig, EnumVariation, RustEdition, RustTarget};

use crate::problem::{INCLUDE_DIR, Problem};

/// Types that the crate gives its users; those that they refer to come along.
const TYPES: &str = "__be16|verbs_context|ibv_(context|device|device_attr|device_attr_ex|query_device_ex_input|\
    port_attr|gid|pd|mr|cq|cq_ex|cq_init_attr_ex|comp_channel|wc|qp|qp_cap|qp_attr|qp_init_attr|srq_init_attr|\
    ah_attr|global_route|sge|send_wr|recv_wr|async_event|(access|send|wc|create_cq_attr)_flags|\
    (qp|cq_init)_attr_mask)|ib_uverbs_(access|query_port)_flags";

/// Constants of enums without a name.
const CONSTANTS: &str = "IBV_LINK_LAYER_.*";

/// Enums whose values C keeps in plain integers, most of them as bits: so do the bindings.
const FLAGS: &str = "ib(v|_uverbs)_([a-z_]+_)?(flags2?|mask|caps|bits|fields)|IBV_LINK_LAYER_.*";

/// Objects that libibverbs makes: a copy of one would be none.
const OBJECTS: &str = "verbs_context|ibv_(context|device|pd|mr|cq|cq_ex|comp_channel|qp|srq)";

/// What headers before rdma-core 44 lack, and the crate has by hand: the same API with any headers.
const BY_HAND: &str = "ibv_gid_entry|ibv_gid_type|ibv_fork_status|ibv_query_qp_data_in_order_.*";

/// The functions that the crate looks up at run time. It checks the types in its table of them against these
/// declarations, as far as the headers have them.
const FUNCTIONS: &[&str] = &[
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_pd",
    "ibv_close_device",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_srq",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_event_type_str",
    "ibv_fork_init",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_guid",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_is_fork_initialized",
    "ibv_modify_qp",
    "ibv_open_device",
    "ibv_port_state_str",
    "ibv_query_device",
    "ibv_query_gid",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_reg_mr",
    "ibv_reg_mr_iova2",
    "ibv_wc_status_str",
];

/// Writes `types.rs` and `functions.rs`, and says in `cfg(header_has)` which functions there are.
pub fn write() -> Result<(), Problem> {
    let include = include_dirs()?;
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    // bindgen loads it too, but panics where it is missing.
    clang_sys::load().map_err(Problem::NoLibclang)?;

    // The tests compile C programs with the same headers.
    let paths = env::join_paths(&include).map_err(|error| Problem::Other(error.to_string()))?;
    println!(
        "cargo::rustc-env=VERBS_INCLUDE_PATHS={}",
        paths.to_string_lossy()
    );

    let out = PathBuf::from(variable("OUT_DIR")?);
    let types = builder(&include)?
        .with_codegen_config(CodegenConfig::TYPES | CodegenConfig::VARS)
        .allowlist_type(TYPES)
        .allowlist_var(CONSTANTS);
    save(types, &out.join("types.rs"))?;

    let functions = builder(&include)?
        .with_codegen_config(CodegenConfig::FUNCTIONS)
        .allowlist_function(FUNCTIONS.join("|"));
    let text = save(functions, &out.join("functions.rs"))?;
    for name in FUNCTIONS {
        if text.contains(&format!("fn {name}(")) {
            println!("cargo::rustc-cfg=header_has=\"{name}\"");
        }
    }
    Ok(())
}

/// What both files have in common.
fn builder(include: &[PathBuf]) -> Result<Builder, Problem> {
    let rust: RustTarget = variable("CARGO_PKG_RUST_VERSION")?
        .parse()
        .map_err(|error| Problem::Other(format!("rust-version: {error:?}")))?;
    Ok(Builder::default()
        .header_contents("verbs.c", "#include <infiniband/verbs.h>\n")
        // bindgen itself reads TARGET, and tells clang when that is not the host.
        .clang_args(include.iter().map(|dir| format!("-I{}", dir.display())))
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()))
        .rust_target(rust)
        .rust_edition(RustEdition::Edition2024)
        .default_enum_style(EnumVariation::NewType {
            is_bitfield: false,
            is_global: true,
        })
        .constified_enum(FLAGS)
        .prepend_enum_name(false)
        .blocklist_item(BY_HAND)
        .no_copy(OBJECTS)
        // The crate takes them from libc.
        .blocklist_type("pthread_(mutex|cond)_t")
        .derive_default(true)
        .use_core()
        .layout_tests(true)
        .generate_comments(false)
        .formatter(bindgen::Formatter::Prettyplease))
}

fn save(builder: Builder, path: &Path) -> Result<String, Problem> {
    let text = builder
        .generate()
        .map_err(|error| Problem::Clang(error.to_string()))?
        .to_string();
    fs::write(path, &text)
        .map_err(|error| Problem::Other(format!("{}: {error}", path.display())))?;
    Ok(text)
}

/// Where the headers are, apart from where the compiler looks anyway.
fn include_dirs() -> Result<Vec<PathBuf>, Problem> {
    println!("cargo::rerun-if-env-changed={INCLUDE_DIR}");
    if let Some(dir) = env::var_os(INCLUDE_DIR) {
        let dir = PathBuf::from(dir);
        if !dir.join("infiniband/verbs.h").is_file() {
            return Err(Problem::NoHeader(dir));
        }
        return Ok(vec![dir]);
    }
    pkg_config::Config::new()
        // That of rdma-core 28.
        .atleast_version("1.8.28")
        // Nothing is linked: the library is loaded at run time.
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libibverbs")
        .map(|library| library.include_paths)
        .map_err(not_found)
}

/// What pkg-config said, without its advice: ours is better for this library.
fn not_found(error: pkg_config::Error) -> Problem {
    use pkg_config::Error;
    match error {
        Error::Command { command, cause } => Problem::NoPkgConfig(format!("{command}: {cause}")),
        Error::Failure { output, .. } | Error::ProbeFailure { output, .. } => {
            let said = String::from_utf8_lossy(&output.stderr);
            Problem::NoLibibverbs(said.lines().next().unwrap_or_default().to_owned())
        }
        _ => Problem::NoLibibverbs(error.to_string()),
    }
}

fn variable(name: &str) -> Result<String, Problem> {
    env::var(name).map_err(|error| Problem::Other(format!("{name}: {error}")))
}
