#!/usr/bin/env bash
# What `make setup` does, in two parts: `packages` (.venv and all pinned packages) and `models`.
# Each step says what it does, shows that it is alive, and says how long it took. Everything printed by the
# installers is kept in $VENV/setup.log.
set -eu

PYTHON=${PYTHON:-python3.11}
VENV=${VENV:-.venv}
LOG=$VENV/setup.log

require() { # COMMAND  WHAT-IT-IS  DEBIAN-PACKAGE
    command -v "$1" > /dev/null 2>&1 && return
    echo "edgespec needs $2 ($1), which is not here: install it (Debian and Ubuntu: apt-get install $3)." >&2
    exit 1
}

# step TEXT COMMAND...: runs the command with its output in the log, and a sign of life every few seconds.
step() {
    local text=$1 started=$SECONDS every=20 beat
    shift
    [ -t 1 ] && every=2
    echo "$text"
    "$@" >> "$LOG" 2>&1 &
    local child=$!
    trap 'kill $child 2> /dev/null; exit 130' INT TERM
    while kill -0 "$child" 2> /dev/null; do
        for ((beat = 0; beat < every * 5; beat++)); do
            sleep 0.2
            kill -0 "$child" 2> /dev/null || break 2
        done
        sign_of_life $((SECONDS - started))
    done
    trap - INT TERM
    if ! wait "$child"; then
        [ -t 1 ] && printf '\r\033[K'
        echo "This failed; the last lines of $LOG:" >&2
        tail -n 25 "$LOG" >&2
        echo "If a package could not be found, check the network and pip's settings; then run make again." >&2
        exit 1
    fi
    [ -t 1 ] && printf '\r\033[K'
    echo "  done in $((SECONDS - started)) s"
}

# The elapsed time, and how far a compilation is (ninja's [12/345] or make's [ 12%]) or what pip is at.
sign_of_life() {
    local last
    last=$(tail -c 20000 "$LOG" | grep -aoE '\[ *[0-9]+(/[0-9]+|%)\]|(Collecting|Downloading|Installing collected) [^ ]*' | tail -n 1 || true)
    if [ -t 1 ]; then printf '\r\033[K  %s s %s' "$1" "$last"; else echo "  $1 s $last"; fi
}

# llama.cpp is compiled here, only the libraries that are loaded (tools/llama.cmake). make's own flags (its job server)
# must not reach that build. What pip kept of a build without that file is not taken.
build_llama() {
    compile_llama
    [ -f "$(llama_build)" ] || compile_llama --no-cache-dir --force-reinstall
}

compile_llama() {
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
        CMAKE_ARGS="-DLLAVA_BUILD=OFF '-DCMAKE_PROJECT_INCLUDE=$PWD/tools/llama.cmake' ${CMAKE_ARGS:-}" \
        "$VENV/bin/python" -m pip install -v --no-input --no-build-isolation --no-deps "$@" \
        --require-hashes --requirement requirements/llama.txt
}

# The file in which tools/llama.cmake says how it was compiled.
llama_build() {
    "$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib") + "/llama_cpp/lib/edgespec.txt")'
}

# Only files whose SHA-256 is in requirements/NAME.txt, which lists dependencies of dependencies, too.
locked() { # NAME
    pip_install --no-deps --only-binary :all: --require-hashes --requirement "requirements/$1.txt"
}

locked_packages() { # NAME
    locked "$1"
    # The CPU wheel of torch if pip finds it; else the public one, with the CUDA libraries that it needs.
    [ "$1" != dev ] || locked torch-cpu || locked cuda
}

pip_install() {
    "$VENV/bin/python" -m pip install --no-input --disable-pip-version-check "$@"
}

packages() { # NAME of the file in requirements/
    require "$PYTHON" "Python 3.11" python3.11
    require cc "a C compiler" build-essential
    require c++ "a C++ compiler" build-essential
    require cmake "CMake" cmake
    require make "make" make
    "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || {
        echo "edgespec needs Python 3.11 or later, and $PYTHON is none: name one with make PYTHON=..." >&2
        exit 1
    }
    "$PYTHON" -c 'import ensurepip, venv' 2> /dev/null || {
        echo "edgespec needs Python's venv module, which is not here: install it (Debian and Ubuntu: apt-get install python3.11-venv)." >&2
        exit 1
    }
    mkdir -p "$VENV"
    : > "$LOG"
    local started=$SECONDS
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c 'import pip' 2> /dev/null ||
        step "1/4 a virtual environment in $VENV" "$PYTHON" -m venv "$VENV"
    step "2/4 pip and the build tools, as locked" locked build
    # First what is large and comes as a wheel: when it cannot be had, nobody has waited for the compiler.
    step "3/4 the Python packages, as locked$([ "$1" != dev ] || echo " (torch alone is about 200 MB)")" locked_packages "$1"
    step "4/4 llama.cpp, compiled for this processor (2 to 4 minutes on two cores, seconds when pip kept the last build)" build_llama
    echo "  $(cat "$(llama_build)")"
    step "    checking that they fit together" check_packages "$1"
    echo $((SECONDS - started)) > "$VENV/setup-s"
    echo "packages ready after $((SECONDS - started)) s"
}

check_packages() { # NAME of the file in requirements/
    pip_install --no-build-isolation --no-deps --editable .
    # The lab needs the packages of gateway and torch, which are in dev.txt only.
    [ "$1" != dev ] || pip_install --no-build-isolation --no-deps --editable ./lab
    "$VENV/bin/python" -m pip check
    "$VENV/bin/python" -c 'import llama_cpp'
}

models() {
    local started=$SECONDS
    echo "models, into the cache (98 MB, and two drafts made from it)"
    "$VENV/bin/edgespec" models fetch auto:quantised
    "$VENV/bin/edgespec" models make --drop 10
    "$VENV/bin/edgespec" models make --format q4_0
    for model in auto:quantised auto:requantised auto:dropped; do "$VENV/bin/edgespec" models check $model; done
    echo "models ready after $((SECONDS - started)) s; set-up took $(($(cat "$VENV/setup-s") + SECONDS - started)) s in all"
}

worker() {
    packages worker
    "$VENV/bin/edgespec" models fetch auto:quantised
    "$VENV/bin/edgespec" models check auto:quantised
}

# For an image: the packages, and edgespec itself as a copy.
container() { # NAME of the file in requirements/
    packages "$1"
    pip_install --quiet --no-build-isolation --no-deps --force-reinstall .
}

case ${1:-} in
packages) packages dev ;;
models | worker) "$1" ;;
container) container "$2" ;;
*)
    echo "usage: $0 packages|models|worker|container NAME" >&2
    exit 2
    ;;
esac
