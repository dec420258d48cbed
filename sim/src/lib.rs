//! A simulated fabric with virtual time, seeds and faults, and the checks that run on it
