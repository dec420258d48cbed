//! Hugepage-backed shared memory that never raises SIGBUS
