//! What goes wrong in a network, and to processes.
