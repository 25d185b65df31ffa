"""Builds llama.cpp from the sources in llama-cpp-python's package: once for this machine, and its CPU library again
for smaller instruction sets."""

import tarfile
from dataclasses import dataclass
from pathlib import Path

from .places import run

PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-server", "llama-quantize")
AVX2 = ("SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2")
AVX512 = (*AVX2, "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")
#: The instruction sets of each build besides the native one, and the rarest of them as named in /proc/cpuinfo.
VARIANTS = {
    "avx2": (AVX2, "avx2"),
    "avx2-vnni": ((*AVX2, "AVX_VNNI"), "avx_vnni"),
    "avx512": (AVX512, "avx512_bf16"),
}

#: GCC 12 takes `_tile_loadconfig` to read 8 of its 64 bytes and leaves the rest unset: the program then ends in a fault
#: at its first quantized product on a machine with AMX. The line added makes the compiler set them all.
TILE_CONFIG = "    _tile_loadconfig(&tc);"
TILE_CONFIG_KEPT = '    __asm__ volatile("" : : "r"(&tc) : "memory");\n' + TILE_CONFIG


@dataclass(frozen=True)
class Programs:
    """llama.cpp's programs, and the folder of the CPU library that they use."""

    programs: Path
    libraries: Path

    def command(self, program, *arguments):
        return ["env", f"LD_LIBRARY_PATH={self.libraries}", self.programs / program, *arguments]


def runs_here(variant):
    """Whether this machine has the instruction sets of that variant."""
    return variant == "native" or VARIANTS[variant][1] in Path("/proc/cpuinfo").read_text().split()


def programs(places, variant="native"):
    """This variant of llama.cpp, built when absent."""
    source = sources(places)
    native = source / "build" / "bin"
    if not all((native / program).exists() for program in PROGRAMS):
        build(places, source, "build", ["-DGGML_NATIVE=ON"], PROGRAMS)
    if variant == "native":
        return Programs(native, native)
    name = f"build-{variant}"
    library = source / name / "bin" / "libggml-cpu.so"
    if not library.exists():
        flags = [f"-DGGML_{instruction}=ON" for instruction in VARIANTS[variant][0]]
        build(places, source, name, ["-DGGML_NATIVE=OFF", *flags], ["ggml-cpu"])
    return Programs(native, library.parent)


def build(places, source, name, flags, targets):
    parts = [f"-DLLAMA_BUILD_{part}=OFF" for part in ("UI", "TESTS", "EXAMPLES")]
    places.cmake(source, source / name, [*parts, *flags], targets)


def sources(places):
    """The folder of llama.cpp's sources, fetched when absent."""
    if not (found := unpacked(places)):
        fetch = ["download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", places.cache, "llama-cpp-python"]
        run([places.tools() / "python", "-m", "pip", *fetch])
        with tarfile.open(next(places.cache.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(places.cache, filter="data")
        found = unpacked(places)
    source = found[-1] / "vendor" / "llama.cpp"
    keep_tile_config(source / "ggml/src/ggml-cpu/amx/mmq.cpp")
    return source


def unpacked(places):
    return sorted(path for path in places.cache.glob("llama_cpp_python-*") if path.is_dir())


def keep_tile_config(path):
    text = path.read_text()
    if TILE_CONFIG in text and TILE_CONFIG_KEPT not in text:
        path.write_text(text.replace(TILE_CONFIG, TILE_CONFIG_KEPT))
