//! RPC over RDMA reliable connections that does not slow down as clients are added
