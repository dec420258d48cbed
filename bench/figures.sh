#!/usr/bin/env bash
# Regenerates the figures of docs/figures/, on a machine that has nothing else to do: some minutes. Instructions are
# counted by valgrind.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
cargo build --release -p scalerpc-bench -p scalerpc-cli
target=${CARGO_TARGET_DIR:-target}
for command in sweep skew octopus; do
    "$target/release/scalerpc-bench" "$command" --out docs/figures
done
"$target/release/scalerpc" model --out docs/figures
# A peer that cannot be had is named as missing in the table.
bench/peers/get-ucx.sh || true
cargo build --release --manifest-path bench/peers/iceoryx2/Cargo.toml --target-dir "$target/peers/iceoryx2" || true
"$target/release/scalerpc-bench" --out docs/figures >docs/figures/peers.txt
cat docs/figures/peers.txt
# As a program that uses the library is built by default.
cargo build --profile ci -p scalerpc-bench
"$target/ci/scalerpc-bench" costs --out docs/figures
