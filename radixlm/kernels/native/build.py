"""Compiles the C++ kernels for this very machine and keeps the result on disk. Knows files and compilers, no kernel.

The sources include no torch header: they compile in a few seconds and depend on no torch version.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from radixlm.base import log
from radixlm.base.paths import cache_directory

logger = log.get(__name__)

SOURCES = Path(__file__).parent / "src"
COMPILE = ("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-fopenmp", "-w")
TIMEOUT_S = 300


class BuildError(Exception):
    """Why there is no library, in one line."""


def built_library(target: str = "native") -> Path:
    """The shared library for these sources on this CPU, compiled now unless it is already there.

    target: what the compiler may assume of the CPU (`-march`).

    Any number of processes may ask at once: each builds in a directory of its own and renames the result into place.
    Raises BuildError when this CPU is not served or nothing can compile here.
    """
    flags = _cpu_flags()
    compiler = _compiler()
    runtime = openmp_runtime()
    compile_command = [compiler, f"-march={target}", *COMPILE]
    library = cache_directory() / "native" / f"{_fingerprint(flags, compile_command, runtime)}.so"
    if not library.exists():
        logger.info("compiling the native CPU kernels for this machine (once, a few seconds)")
        try:
            _build(compile_command, runtime, library)
        except OSError as error:
            raise BuildError(f"cannot build in {library.parent}: {error}") from error
    return library


def openmp_runtime() -> Path:
    """The OpenMP library that torch has loaded into this process; a second one would fight it for the cores."""
    home = str(Path(torch.__file__).parent.parent)
    with open("/proc/self/maps", encoding="utf-8") as maps:
        mapped = {fields[5] for line in maps if len(fields := line.split(maxsplit=5)) == 6}
    found = [Path(name.strip()) for name in mapped if Path(name.strip()).name.startswith(("libgomp", "libiomp5"))]
    if not found:
        raise BuildError("torch has no GNU-compatible OpenMP runtime loaded")
    return min(found, key=lambda path: (not str(path).startswith(home), str(path)))


def _cpu_flags() -> str:
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise BuildError(f"written for Linux on x86-64, not {platform.system()} on {platform.machine()}")
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        flags = next((line.partition(":")[2] for line in info if line.startswith("flags")), "")
    if not {"avx2", "fma", "f16c"} <= set(flags.split()):
        raise BuildError("this CPU lacks AVX2, FMA or F16C")
    return flags


def _compiler() -> str:
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise BuildError(f"no C++ compiler ({name}) on the PATH")
    return path


def _fingerprint(flags: str, compile_command: list[str], runtime: Path) -> str:
    compiler = os.stat(compile_command[0])
    parts = [flags, *compile_command, str(compiler.st_size), str(compiler.st_mtime_ns), str(runtime)]
    digest = hashlib.sha256("\n".join(parts).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:20]


def _build(compile_command: list[str], runtime: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as directory:
        objects = [(source, Path(directory) / f"{source.stem}.o") for source in sorted(SOURCES.glob("*.cpp"))]
        _run([[*compile_command, "-c", str(source), "-o", str(out)] for source, out in objects])
        result = Path(directory) / "library.so"
        # Not linked with -fopenmp: that would add the compiler's own OpenMP runtime beside torch's.
        _run([[compile_command[0], "-shared", "-o", str(result), *(str(out) for _, out in objects), str(runtime)]])
        os.replace(result, library)


def _run(commands: list[list[str]]) -> None:
    """Run the commands at the same time; BuildError with the first line of what the first failing one said."""
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for command in commands]
    failures = []
    for process in running:
        try:
            _, stderr = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            failures.append(f"compiler still running after {TIMEOUT_S} s")
            continue
        if process.returncode:
            text = stderr.decode(errors="replace")
            failures.append(next((line for line in text.splitlines() if "error" in line), text.strip()[:200]))
    if failures:
        raise BuildError(f"compilation failed: {failures[0]}")
