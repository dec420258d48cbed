#!/usr/bin/env bash
# Every check of this repository. `./ci.sh help` lists them.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"

usage() {
    cat <<'END'
usage: ./ci.sh [all|quick|STEP]...

  all       every step below (the default)
  quick     fmt, lint, nostd, doc and test: what takes no more than a few minutes

  fmt       rustfmt finds nothing to change
  lint      clippy without warnings, for each set of features; shell scripts; length of files;
            the programs that bench/peers compares with, if what they need can be fetched;
            the tests that docs/field-cases.md names are there
  nostd     scalerpc-core links into a no_std binary without an allocator, and it runs
  doc       rustdoc without warnings, private items included
  msrv      all targets compile with exactly the compiler that Cargo.toml's rust-version names
  package   every crate that is published can be packaged, and builds from its package
  test      unit, integration and documentation tests, in debug
  release   the same for the libraries and the simulation, in release
  e2e       the same for the scalerpc crate and the command: whole processes, in release
  vm        real verbs on soft-RoCE, and hugepages: in a virtual machine, see ci/soft-roce-vm
  mutants   every deliberate bug of the core is noticed by the simulation
  fuzz      the fuzzing targets: format, clippy, and each of them replays its corpus
  asan      the shared-memory back end, hostile peers and killed processes, under the address sanitizer
  loom      the loom models, in release

What a step needs and is missing is installed with apt-get where there is one, as root or by sudo.
A step that cannot be run here is listed as skipped by its name, never as passed.
END
}

readonly ALL=(fmt lint nostd doc msrv package test release e2e vm mutants fuzz asan loom)
readonly QUICK=(fmt lint nostd doc test)

# The models are slow in debug; the loom step runs them.
readonly MODELS=scalerpc-tests-loom
readonly NOSTD=core-nostd/tests/nostd-link
readonly PEERS=bench/peers
readonly FILE_LINES_MAX=600
target_dir=${CARGO_TARGET_DIR:-$PWD/target}
readonly target_dir

say() { printf 'ci.sh: %s\n' "$*" >&2; }
die() {
    say "$@"
    exit 1
}

# --- What the steps have in common ---------------------------------------------------------------

step=
step_started=0
steps_done=()
steps_skipped=()
skip_reason=
passed=0
failed=0
ignored=0
log=$(mktemp)

finish() {
    local status=$?
    rm -f -- "$log"
    if [[ $status -ne 0 && -n $step ]]; then
        say "step $step FAILED after $((SECONDS - step_started)) s; the steps after it did not run"
    elif [[ $status -eq 0 && -n ${steps_done[*]}${steps_skipped[*]} ]]; then
        say "ok in $SECONDS s: $(join "${steps_done[@]}"); skipped: $(join "${steps_skipped[@]}")"
    fi
    if ((passed + failed + ignored > 0)); then
        # The counts of all test runs, for whoever reads only the last line.
        printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$ignored"
    fi
}
trap finish EXIT

# Joins its arguments with commas; "none" if there are none.
join() {
    local all
    printf -v all ', %s' "${@:-none}"
    printf '%s' "${all#, }"
}

# Runs one step. It ends the script when it fails, and names a reason in skip_reason when it cannot
# be run here.
run() {
    step=$1
    step_started=$SECONDS
    skip_reason=
    say "== $step"
    "step_$step"
    if [[ -n $skip_reason ]]; then
        say "== $step skipped: $skip_reason"
        steps_skipped+=("$step ($skip_reason)")
    else
        say "== $step ok, $((SECONDS - step_started)) s"
        steps_done+=("$step $((SECONDS - step_started)) s")
    fi
    step=
}

can_be_root() { [[ $EUID -eq 0 ]] || command -v sudo >/dev/null; }

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif can_be_root; then
        sudo "$@"
    else
        say "not root and no sudo, so this cannot be run: $*"
        return 1
    fi
}

apt_updated=
apt_update() {
    if [[ -z $apt_updated ]]; then
        as_root apt-get update -qq || return
        apt_updated=1
    fi
}

# need COMMAND [PACKAGE]: installs the package unless the command is there.
need() {
    local command=$1 package=${2:-$1}
    if command -v "$command" >/dev/null; then
        return
    fi
    command -v apt-get >/dev/null || die "$command is missing: install it (Debian: $package)"
    can_be_root || die "$command is missing; as root, run: apt-get update && apt-get install $package"
    say "installing $package, for $command"
    apt_update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package"
    command -v "$command" >/dev/null || die "$package is installed, but $command is not there"
}

# need_packages PACKAGE...: installs packages that bring no command, such as headers, where there is apt-get.
need_packages() {
    local package missing=()
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    if ((${#missing[@]} == 0)); then
        return
    fi
    can_be_root || die "as root, run: apt-get update && apt-get install ${missing[*]}"
    say "installing ${missing[*]}"
    apt_update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" ||
        die "${missing[*]} could not be installed"
}

is_installed() {
    [[ $(dpkg-query --show --showformat='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

# need_verbs CHECK: what the bindings to libibverbs are written from and with. Where that is missing and cannot be
# installed it fails, and the check with the feature verbs counts as skipped.
need_verbs() {
    if command -v apt-get >/dev/null; then
        need pkg-config
        need_packages libibverbs-dev libclang-dev
    elif ! pkg-config --exists libibverbs 2>/dev/null; then
        steps_skipped+=("$1 with verbs (no headers of libibverbs, and no apt-get to install them)")
        return 1
    fi
}

# need_component SUBCOMMAND COMPONENT: adds the rustup component unless cargo has the subcommand.
need_component() {
    if ! cargo "$1" --version >/dev/null 2>&1; then
        say "adding the rustup component $2"
        rustup component add "$2"
    fi
}

# Prints "folder name published-or-not" for each member of the workspace.
members() {
    local manifest
    for manifest in ./Cargo.toml */Cargo.toml; do
        # A workspace of its own is no member, except for this one's root.
        if [[ $manifest == ./Cargo.toml ]] || ! grep -q '^\[workspace\]' "$manifest"; then
            awk -v dir="${manifest%/*}" '
                /^\[/ { section = $0 }
                section == "[package]" && $1 == "name" { gsub(/"/, "", $3); name = $3 }
                section == "[package]" && /^publish *= *false/ { publish = "no" }
                END { print dir, name, publish == "no" ? "private" : "published" }
            ' "$manifest"
        fi
    done
}

# Prints the features that a manifest defines, other than default.
features() {
    awk '
        /^\[/ { section = $0 }
        section == "[features]" && /^[A-Za-z0-9_-]+ *=/ && $1 != "default" { print $1 }
    ' "$1"
}

# Prints the names of the members with the feature verbs: the one that needs more than Rust and a C compiler.
members_with_verbs() {
    local dir name
    while read -r dir name _; do
        if features "$dir/Cargo.toml" | grep -qx verbs; then
            printf '%s\n' "$name"
        fi
    done < <(members)
}

# Runs a command that reports as cargo test does, shows what it prints, and adds up its results.
count_tests() {
    local status=0 counts
    "$@" 2>&1 | tee "$log" || status=$?
    counts=$(awk '
        /^test result: / {
            for (i = 2; i <= NF; i++) {
                if ($i ~ /^passed/) passed += $(i - 1)
                if ($i ~ /^failed/) failed += $(i - 1)
                if ($i ~ /^ignored/) ignored += $(i - 1)
            }
        }
        END { print passed + 0, failed + 0, ignored + 0 }
    ' "$log")
    local -a n
    read -r -a n <<<"$counts"
    passed=$((passed + n[0]))
    failed=$((failed + n[1]))
    ignored=$((ignored + n[2]))
    if ((status == 0 && n[0] + n[1] == 0)); then
        die "$*: no test was run"
    fi
    return "$status"
}

cargo_test() {
    count_tests cargo test --locked --no-fail-fast "$@"
}

# vm_cargo_test "VM-OPTION..." ARGUMENT...: cargo test that runs each test binary in a virtual machine
# of its own. The arguments have to name test targets: each documentation test would be a machine too.
vm_cargo_test() {
    local runner="ci/soft-roce-vm $1"
    shift
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$runner cargo_test --profile ci "$@"
}

# Installs the programs that tests start, where a test names them.
need_for_tests() {
    local program
    for program in strace valgrind; do
        if grep -rqs --include='*.rs' "Command::new(\"$program\")" -- */tests */src; then
            need "$program"
        fi
    done
}

# --- The steps -----------------------------------------------------------------------------------

step_fmt() {
    need_component fmt rustfmt
    cargo fmt --all --check
    cargo fmt --manifest-path "$PEERS/iceoryx2/Cargo.toml" --check
    cargo fmt --manifest-path "$NOSTD/Cargo.toml" --check
}

step_lint() {
    local member dir name feature members scripts long
    need_component clippy clippy
    cargo clippy --locked --workspace --all-targets -- -D warnings
    mapfile -t members < <(members)
    for member in "${members[@]}"; do
        read -r dir name _ <<<"$member"
        # Every feature alone and all together, so that none leans on another unseen.
        if [[ -n $(features "$dir/Cargo.toml") ]]; then
            if features "$dir/Cargo.toml" | grep -qx verbs && ! need_verbs "clippy of $name"; then
                continue
            fi
            cargo clippy --locked -p "$name" --all-targets --no-default-features -- -D warnings
            cargo clippy --locked -p "$name" --all-targets --all-features -- -D warnings
            for feature in $(features "$dir/Cargo.toml"); do
                cargo clippy --locked -p "$name" --all-targets --no-default-features \
                    --features "$feature" -- -D warnings
            done
        fi
    done
    nostd_cargo clippy -- -D warnings
    lint_peers

    if command -v shellcheck >/dev/null || command -v apt-get >/dev/null; then
        need shellcheck
        mapfile -t scripts < <(find . -name target -prune -o -name '*.sh' -print)
        shellcheck .ci/run ci/soft-roce-vm "${scripts[@]}"
    else
        steps_skipped+=("shellcheck (it is not here, and there is no apt-get to install it)")
    fi

    long=$(find . -name target -prune -o -name '*.rs' -exec wc -l {} + |
        awk -v max="$FILE_LINES_MAX" '$2 != "total" && $1 > max { print $2 ": " $1 " lines" }')
    [[ -z $long ]] || die "longer than $FILE_LINES_MAX lines: split them"$'\n'"$long"

    local test tests
    # Their names are long, which tells them from other words in code style.
    mapfile -t tests < <(grep -oE '[a-z0-9]+(_[a-z0-9]+){3,}`' docs/field-cases.md | tr -d '`' | sort -u)
    [[ ${#tests[@]} -gt 0 ]] || die "docs/field-cases.md names no test"
    for test in "${tests[@]}"; do
        grep -rqs --include='*.rs' "fn ${test}[(<]" -- */tests */src tests src ||
            die "docs/field-cases.md names a test that is not there: $test"
    done
}

# What others are measured with: it is in no package, and takes what only a download can give.
lint_peers() {
    if [[ $(uname -m) != x86_64 ]]; then
        steps_skipped+=("ucx_am.c (the wheel of UCX is for x86_64)")
    elif ! python3 -m pip --version >/dev/null 2>&1; then
        steps_skipped+=("ucx_am.c (no pip to fetch the headers of UCX with)")
    elif ! CARGO_TARGET_DIR=$target_dir "$PEERS/get-ucx.sh" --fetch; then
        steps_skipped+=("ucx_am.c (the headers of UCX could not be fetched)")
    else
        CARGO_TARGET_DIR=$target_dir "$PEERS/get-ucx.sh"
    fi
    cargo clippy --locked --manifest-path "$PEERS/iceoryx2/Cargo.toml" \
        --target-dir "$target_dir/peers/iceoryx2" -- -D warnings
}

step_doc() {
    local name
    local -x RUSTDOCFLAGS=${RUSTDOCFLAGS:-}' -Dwarnings'
    cargo doc --locked --workspace --no-deps --document-private-items
    if need_verbs doc; then
        for name in $(members_with_verbs); do
            cargo doc --locked -p "$name" --all-features --no-deps --document-private-items
        done
    fi
}

# Runs cargo on the binary that links the core, with the workspace's versions of what it depends on.
nostd_cargo() {
    local verb=$1
    shift
    cp Cargo.lock "$NOSTD/Cargo.lock"
    cargo "$verb" --manifest-path "$NOSTD/Cargo.toml" --target-dir "$target_dir/nostd" "$@"
}

step_nostd() {
    local binary=$target_dir/nostd/release/nostd-link symbols foreign status=0
    nostd_cargo build --release

    # What it may take from outside: the start code, abort, and the functions on memory that
    # compilers call by themselves. Anything else, an allocator above all, is a mistake.
    symbols=$(nm --undefined-only "$binary")
    foreign=$(awk '{ sub(/@.*/, "", $NF); print $NF }' <<<"$symbols" | grep -vxE \
        'memcpy|memmove|memset|memcmp|bcmp|abort|__libc_start_main|__gmon_start__|__cxa_finalize|_ITM_.*' ||
        true)
    [[ -z $foreign ]] || die "the core refers to symbols that it must not need:"$'\n'"$foreign"
    symbols=$(nm "$binary" | grep -E '__rust_(alloc|realloc|dealloc)|__rg_alloc|malloc' || true)
    [[ -z $symbols ]] || die "an allocator is linked with the core:"$'\n'"$symbols"

    "$binary" || status=$?
    [[ $status -eq 0 ]] || die "nostd-link exited with $status: see CHECKS in $NOSTD/src/main.rs"
}

step_msrv() {
    local msrv rustc libraries name verbs=()
    msrv=$(awk -F'"' '/^rust-version *=/ { print $2 }' Cargo.toml)
    [[ -n $msrv ]] || die "Cargo.toml names no rust-version"
    msrv_toolchain "$msrv"
    if [[ -n $skip_reason ]]; then
        return
    fi
    if need_verbs msrv; then
        mapfile -t verbs < <(members_with_verbs)
    fi
    libraries=$(dirname -- "$(find "$msrv_root/usr/lib" -name 'librustc_driver-*.so' -print -quit)")
    libraries=$libraries:${libraries/"$msrv_root/usr"/"$msrv_root"}
    (
        export PATH="$msrv_root/usr/bin:$PATH" LD_LIBRARY_PATH="$libraries"
        export RUSTC="$msrv_root/usr/bin/rustc" RUSTDOC="$msrv_root/usr/bin/rustdoc"
        unset RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER
        rustc=$("$RUSTC" --version)
        [[ $rustc == "rustc $msrv."* ]] || die "wanted rustc $msrv, got $rustc"
        say "$rustc, $(cargo --version)"
        # What users build. Tests and their libraries may ask for more.
        cargo check --locked --workspace --target-dir "$target_dir/msrv"
        for name in "${verbs[@]}"; do
            cargo check --locked -p "$name" --all-features --target-dir "$target_dir/msrv"
        done
    )
}

# Lays Debian's packages of exactly this compiler, and the libraries that it needs and are missing,
# into a folder of their own, which it names in msrv_root. Nothing is installed.
msrv_root=
msrv_toolchain() {
    local msrv=$1 version cache deb
    if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
        skip_reason="rustc $msrv comes from Debian's packages, and there is no apt-get"
        return
    fi
    version=$(msrv_package "$msrv")
    if [[ -z $version ]]; then
        if apt_update; then
            version=$(msrv_package "$msrv")
        fi
    fi
    if [[ -z $version ]]; then
        skip_reason="this system's package lists have no rustc-web $msrv"
        return
    fi

    cache=${XDG_CACHE_HOME:-$HOME/.cache}/scalerpc-ci
    msrv_root=$cache/rustc-web-$version
    if [[ -x $msrv_root/usr/bin/cargo ]]; then
        return
    fi
    say "fetching rustc-web $version into $msrv_root"
    rm -rf -- "$cache/debs" "$cache/unpacked"
    mkdir -p "$cache/debs/partial" "$cache/unpacked"
    # The lists may be older than the archive.
    if ! msrv_download "$cache/debs" "$msrv" "$version" &&
        ! { apt_update && msrv_download "$cache/debs" "$msrv" "$version"; }; then
        skip_reason="rustc-web $version could not be downloaded"
        return
    fi
    for deb in "$cache"/debs/*.deb; do
        dpkg -x "$deb" "$cache/unpacked"
    done
    rm -rf -- "$cache/debs" "$cache/unpacked/usr/share/doc" "$cache/unpacked/usr/share/man"
    mv -- "$cache/unpacked" "$msrv_root"
}

# Prints the newest Debian version of rustc-web that is this compiler.
msrv_package() {
    apt-cache madison rustc-web 2>/dev/null |
        awk -v prefix="$1." '!found && index($3, prefix) == 1 { print $3; found = 1 }'
}

msrv_download() {
    apt-get install -y -qq --download-only --no-install-recommends --allow-downgrades \
        -o Debug::NoLocking=1 -o APT::Sandbox::User="$(id -un)" -o Dir::Cache::archives="$1" \
        "rustc-web=$3" "cargo-web=$3" "libstd-rust-web-dev=$3" "libstd-rust-web-$2=$3"
}

step_package() {
    local name published packaged flags=(--locked --workspace)
    while read -r _ name published; do
        if [[ $published == private ]]; then
            flags+=(--exclude "$name")
        fi
    done < <(members)
    if need_verbs package; then
        for name in $(members_with_verbs); do
            flags+=(--features "$name/verbs")
        done
    fi
    if [[ -z ${CI:-} && -n $(git status --porcelain 2>/dev/null) ]]; then
        say "the tree has changes that are not committed: packaging them with --allow-dirty"
        flags+=(--allow-dirty)
    fi
    # A target of its own: Cargo takes the root package and its unpacked copy for one, so that in a shared target
    # later builds of the former would look for changes in the latter. And of a new name: Cargo keeps what it unpacked
    # by that name and the version, which is the same for each commit.
    mkdir -p -- "$target_dir"
    packaged=$(mktemp -d -- "$target_dir/packaged.XXXXXX")
    cargo package --target-dir "$packaged" "${flags[@]}"
    rm -rf -- "$packaged"
}

# verbs_test FLAG...: tests with the feature verbs, of all members that have it.
verbs_test() {
    local name which=()
    if need_verbs "$step"; then
        for name in $(members_with_verbs); do
            which=()
            # Its other tests take minutes, and are about shared memory.
            [[ $name != scalerpc-cli ]] || which=(--bins --test command_doctor)
            cargo_test "$@" -p "$name" --all-features "${which[@]}"
        done
    fi
}

step_test() {
    need_for_tests
    cargo_test --workspace --exclude "$MODELS"
    verbs_test
}

step_release() {
    need_for_tests
    cargo_test --profile ci --workspace --exclude "$MODELS" --exclude scalerpc --exclude scalerpc-cli
    verbs_test --profile ci
}

step_e2e() {
    need_for_tests
    cargo_test --profile ci -p scalerpc -p scalerpc-cli
}

step_vm() {
    local status=0 reason
    reason=$(ci/soft-roce-vm --prepare) || status=$?
    if [[ $status -eq 77 ]]; then
        skip_reason=$reason
        return
    fi
    [[ $status -eq 0 ]] || die "ci/soft-roce-vm --prepare exited with $status"
    need ib_write_lat perftest
    count_tests ci/soft-roce-vm -H 16 -t 300 ci/vm-smoke.sh
    vm_cargo_test "-H 64" -p scalerpc-hugepage --test hugepages
    if need_verbs "calls over RDMA"; then
        # One at a time: each has the network to itself.
        vm_cargo_test "-c 4 -H 64" -p scalerpc --features verbs --test verbs --test verbs_idle --test verbs_steady \
            -- --ignored --test-threads 1
        vm_cargo_test "-H 16" -p scalerpc-cli --features verbs --test command_doctor_rdma -- --include-ignored
        vm_cargo_test "-c 4 -m 2048 -H 64" -p scalerpc-cli --features verbs --test command_verbs -- --ignored --test-threads 1
    fi
}

step_mutants() {
    RUSTFLAGS=${RUSTFLAGS:-}' --cfg scalerpc_mutant' CARGO_TARGET_DIR=$target_dir/mutants \
        cargo_test --profile ci -p scalerpc-sim --test mutants -- --nocapture
}

# Fuzzing itself takes hours and a nightly compiler: see fuzz/README.md.
step_fuzz() {
    local manifest=fuzz/Cargo.toml out=$target_dir/fuzz-check target
    need c++ g++
    cargo fmt --manifest-path "$manifest" --check
    cargo clippy --locked --manifest-path "$manifest" --target-dir "$out" --lib --bins -- -D warnings
    cargo build --locked --manifest-path "$manifest" --target-dir "$out"
    for target in fuzz/fuzz_targets/*.rs; do
        target=$(basename -- "$target" .rs)
        "$out/debug/$target" "fuzz/corpus/$target"/* >"$log" 2>&1 || {
            tail -n 40 -- "$log" >&2
            die "the fuzzing target $target fails on its corpus"
        }
    done
}

step_asan() {
    local host sanitized
    host=$(rustc -vV | sed -n 's/^host: //p')
    if ! [[ $host =~ ^(x86_64|aarch64)-unknown-linux-gnu$ ]]; then
        skip_reason="the address sanitizer is not there for $host"
        return
    elif ! rustup toolchain list 2>/dev/null | grep -q '^nightly'; then
        skip_reason="it takes a nightly compiler: rustup toolchain install nightly"
        return
    fi
    need_for_tests
    # Naming the target keeps the sanitizer out of build scripts and procedural macros.
    sanitized=(--target "$host" --target-dir "$target_dir/asan")
    local -x RUSTUP_TOOLCHAIN=nightly RUSTFLAGS=-Zsanitizer=address
    # The tests allow for the sanitizer's own memory where this is set.
    local -x ASAN_OPTIONS=detect_leaks=1 SCALERPC_CHAOS_ROUNDS=20
    cargo_test -p scalerpc-driver "${sanitized[@]}"
    cargo_test -p scalerpc --test chaos "${sanitized[@]}"
}

step_loom() {
    cargo_test --profile ci -p "$MODELS"
}

# --- Which steps ---------------------------------------------------------------------------------

steps=()
for verb in "${@:-all}"; do
    case $verb in
        help | --help | -h)
            usage
            exit
            ;;
        all) steps+=("${ALL[@]}") ;;
        quick) steps+=("${QUICK[@]}") ;;
        *)
            [[ " ${ALL[*]} " == *" $verb "* ]] || {
                usage >&2
                die "no step is called $verb"
            }
            steps+=("$verb")
            ;;
    esac
done

command -v cargo >/dev/null || die "cargo is missing: install Rust with rustup (https://rustup.rs)"
command -v cc >/dev/null || need cc gcc
for verb in "${steps[@]}"; do
    run "$verb"
done
