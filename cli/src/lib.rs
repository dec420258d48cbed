//! The scalerpc command: demo, server, client and benchmark
