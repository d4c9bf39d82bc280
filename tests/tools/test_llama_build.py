"""`tools/llama.cmake` and its probe: which builds of llama.cpp get AMX. Compiles nothing of llama.cpp itself."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

from tools import peers

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="AMX is a part of x86-64 only")
TOOLS = Path(peers.__file__).parent
PROJECT = "cmake_minimum_required(VERSION 3.21)\nproject(some)\nadd_library(some STATIC some.c)\n"
WITHOUT = ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]


def header(folder: Path, bytes_read: int) -> Path:
    """A folder whose amxtileintrin.h declares so many bytes of the configuration as read; gcc 12.2: 8."""
    folder.mkdir()
    (folder / "amxtileintrin.h").write_text(
        "static inline __attribute__((always_inline)) void _tile_loadconfig(const void *c) {\n"
        f'    __asm__ volatile("ldtilecfg\\t%X0" :: "m"(*(const char (*)[{bytes_read}])c));\n}}\n'
    )
    return folder


@pytest.mark.parametrize("level", ["-O2"])
@pytest.mark.parametrize(("bytes_read", "code"), [(8, 1), (64, 0)])
def test_the_probe_sees_stores_that_a_compiler_drops(tmp_path: Path, level: str, bytes_read: int, code: int) -> None:
    include = header(tmp_path / "include", bytes_read)
    program = tmp_path / "probe"
    flags = [level, "-march=native", "-mamx-tile", f"-I{include}"]
    subprocess.run(["c++", *flags, str(TOOLS / "amx_probe.cpp"), "-o", str(program)], check=True)
    assert subprocess.run([program], check=False).returncode == code


@pytest.mark.parametrize(("bytes_read", "says", "flags"), [(8, "no AMX", WITHOUT), (64, "AMX where", [])])
def test_amx_is_compiled_only_by_a_compiler_that_passed(
    tmp_path: Path, bytes_read: int, says: str, flags: list[str]
) -> None:
    include = header(tmp_path / "include", bytes_read)
    source = tmp_path / "source"
    source.mkdir()
    (source / "CMakeLists.txt").write_text(PROJECT)
    (source / "some.c").touch()
    command = ["cmake", "-S", str(source), "-B", str(tmp_path / "made"), f"-DCMAKE_PROJECT_INCLUDE={peers.INCLUDED}"]
    command += ["-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", f"-DCMAKE_CXX_FLAGS=-I{include}", "-DCMAKE_C_FLAGS=-DGIVEN"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (decision,) = (line for line in said.splitlines() if "edgespec:" in line)
    assert says in decision
    compiled = (tmp_path / "made" / "compile_commands.json").read_text().split()
    assert [flag for flag in compiled if flag.startswith("-mno-amx")] == flags and "-DGIVEN" in compiled


def test_the_peer_is_built_under_the_same_decision() -> None:
    assert f"-DCMAKE_PROJECT_INCLUDE={peers.INCLUDED}" in peers.OPTIONS and peers.INCLUDED.is_file()
