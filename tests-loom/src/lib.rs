//! Loom models of every word that two parties of ScaleRPC share
