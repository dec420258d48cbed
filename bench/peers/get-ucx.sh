#!/usr/bin/env bash
# Fetches UCX as a wheel of PyPI, and builds ucx_am with it, in the folder peers of Cargo's target folder. Nothing is
# installed. With --fetch it builds nothing.
set -euo pipefail
here=$(dirname -- "${BASH_SOURCE[0]}")
readonly VERSION=1.22.0
out=$(realpath -m -- "${CARGO_TARGET_DIR:-$here/../../target}")/peers
readonly here out ucx=$out/ucx-$VERSION

if [[ ! -d $ucx/libucx/include ]]; then
    python3 -m pip --version >/dev/null || {
        echo "get-ucx.sh: pip is missing: install it (Debian: python3-pip)" >&2
        exit 1
    }
    mkdir -p -- "$out"
    rm -rf -- "$ucx" "$ucx.part"
    # The wheel has the name of a release of CUDA, but needs none: that is a plug-in of its own.
    python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$ucx.part" "libucx-cu12==$VERSION"
    python3 -m zipfile -e "$ucx.part"/*.whl "$ucx.part"
    rm -- "$ucx.part"/*.whl
    mv -- "$ucx.part" "$ucx"
fi

[[ ${1:-} != --fetch ]] || exit 0
"${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror -isystem "$ucx/libucx/include" "$here/ucx_am.c" -o "$out/ucx_am" -pthread \
    -L"$ucx/libucx/lib" -Wl,--disable-new-dtags,-rpath,"$ucx/libucx/lib" -lucp -lucs
echo "built $out/ucx_am"
