#!/usr/bin/env bash
# setup.sh FOLDER: a worker for aarch64 in FOLDER, to be run by qemu's user mode on another processor.
#
# FOLDER/root      Debian's Python and its libraries for arm64
# FOLDER/packages  the wheels of requirements/{worker,gateway}.txt for aarch64, and llama.cpp compiled across
# FOLDER/tests     pytest and what else tests import
# FOLDER/python    runs that Python; FOLDER/instead runs it in place of the Python that its first argument names
#
# Needs Debian 12 or later with qemu-user, gcc-aarch64-linux-gnu and g++-aarch64-linux-gnu; `make setup` before.
set -eu
FOLDER=$(realpath -m "$1")
HERE=$PWD
PIP="$HERE/.venv/bin/python -m pip --disable-pip-version-check --quiet"
TESTS="attrs certifi charset-normalizer execnet gguf hypothesis iniconfig pluggy pytest pytest-asyncio pytest-timeout
    pytest-xdist requests sortedcontainers urllib3"
PLATFORMS="--platform manylinux2014_aarch64"
for minor in 17 27 28 31 34 35 36; do PLATFORMS="$PLATFORMS --platform manylinux_2_${minor}_aarch64"; done

for program in qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu aarch64-linux-gnu-g++:g++-aarch64-linux-gnu; do
    command -v "${program%%:*}" > /dev/null || {
        echo "The test of aarch64 needs ${program%%:*}: apt-get install ${program##*:}" >&2
        exit 1
    }
done

# Packages of Debian, in a database of their own: this system's knows nothing of arm64.
debian() {
    local state=$FOLDER/debian
    mkdir -p "$FOLDER/root" "$state/lists/partial" "$state/archives/partial"
    local apt="apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State=$state
        -o Dir::State::lists=$state/lists -o Dir::State::status=/dev/null -o Dir::Cache=$state
        -o Dir::Cache::archives=$state/archives -o APT::Sandbox::User=root -o Acquire::Languages=none"
    $apt update
    $apt install -y --no-install-recommends --download-only python3.11 libstdc++6 ca-certificates
    for package in "$state"/archives/*.deb; do dpkg-deb -x "$package" "$FOLDER/root"; done
}

wheels() { # FOLDER REQUIREMENTS...
    local target=$1 file
    shift
    for file in "$@"; do
        $PIP install --no-deps --only-binary :all: --require-hashes --upgrade --target "$target" $PLATFORMS \
            --python-version 3.11 --implementation cp --requirement "$file"
    done
}

llama() {
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" \
        CMAKE_ARGS="-DLLAVA_BUILD=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF '-DCMAKE_PROJECT_INCLUDE=$HERE/tools/llama.cmake' \
            -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
            -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++" \
        $PIP install --no-cache-dir --no-build-isolation --no-deps --upgrade --target "$FOLDER/packages" \
        --require-hashes --requirement requirements/llama.txt
}

launchers() {
    # Paths are known to that Python whatever PYTHONPATH says, and what a test starts with sys.executable is for aarch64.
    cat > "$FOLDER/root/usr/lib/python3/dist-packages/edgespec.pth" <<- EOF
		$FOLDER/packages
		$FOLDER/tests
		$HERE
		import sys; sys.executable = "$FOLDER/python"
	EOF
    cat > "$FOLDER/python" <<- EOF
		#!/bin/sh
		exec qemu-aarch64 -L $FOLDER/root $FOLDER/root/usr/bin/python3.11 "\$@"
	EOF
    cat > "$FOLDER/instead" <<- EOF
		#!/bin/sh
		shift
		exec $FOLDER/python "\$@"
	EOF
    chmod +x "$FOLDER/python" "$FOLDER/instead"
}

step() { # TEXT COMMAND...
    local text=$1 started=$SECONDS
    shift
    echo "$text"
    "$@" >> "$FOLDER/setup.log" 2>&1 || {
        tail -n 25 "$FOLDER/setup.log" >&2
        exit 1
    }
    echo "  done in $((SECONDS - started)) s"
}

mkdir -p "$FOLDER/tests"
"$HERE/.venv/bin/python" -m tools.aarch64.locked $TESTS > "$FOLDER/tests.txt"
step "1/4 Debian's Python for arm64" debian
step "2/4 wheels for aarch64, as locked" wheels "$FOLDER/packages" requirements/worker.txt requirements/gateway.txt
step "3/4 what tests import" wheels "$FOLDER/tests" "$FOLDER/tests.txt"
step "    and the lab" $PIP install --no-build-isolation --no-deps --upgrade --target "$FOLDER/tests" ./lab
step "4/4 llama.cpp, compiled across (minutes)" llama
launchers
touch "$FOLDER/.ready"
